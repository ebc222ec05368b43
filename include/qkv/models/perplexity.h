// How well a decoder predicts a text.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "qkv/models/model.h"

namespace qkv {

struct PerplexityOptions {
  std::int64_t window = 0;          // tokens read at once; 0 = the positions of the model, or 1024
  std::optional<DType> kv_dtype{};  // keys and values as a cache of this dtype would hold them
  // Called after each window with how many there are.
  std::function<void(std::int64_t done, std::int64_t total)> progress{};
};

struct Perplexity {
  double loss = 0;          // the mean of -log p(token), in nats
  std::int64_t tokens = 0;  // that were predicted
  double value() const { return std::exp(loss); }
};

// The text is cut into windows that do not overlap. Each begins with the model's bos_id, where it
// has one, and every token behind the first of its window is predicted from those before it.
Perplexity perplexity(const Model& model, const std::vector<std::int64_t>& ids,
                      const PerplexityOptions& options = {});

}  // namespace qkv

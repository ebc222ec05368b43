// Which rows make which batch of an epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "qkv/data.h"
#include "train/data_draws.h"

namespace qkv::data {

// Batch b has the rows [begins[b], begins[b + 1]).
struct Plan {
  std::vector<std::uint32_t> rows{};
  std::vector<std::uint64_t> begins{0};
  std::int64_t cut = 0;  // of rows of running text: where the first ends

  std::int64_t batches() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::span<const std::uint32_t> batch(std::int64_t b) const;
};

struct Lengths {
  std::uint32_t source = 0, target = 0;  // tokens
};

// Rows of about the same lengths together, so that there is little padding, and as many as
// batch_tokens has room for.
Plan plan_lengths(const DataOptions& options, std::int64_t epoch,
                  const std::vector<Lengths>& lengths);

// Running text of `tokens` tokens in rows of `step`, which begin elsewhere in every epoch.
Plan plan_stream(const DataOptions& options, std::int64_t epoch, std::int64_t tokens,
                 std::int64_t step);

}  // namespace qkv::data

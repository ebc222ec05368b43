// Running a decoder step by step, with or without an encoder in front.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/recorded_step.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"

namespace qkv {

// What a decoder reads before the first new token.
inline std::vector<std::int64_t> read_first(const ModelInfo& info,
                                            const std::vector<std::int64_t>& prompt) {
  return info.kind == ModelKind::decoder ? prompt : std::vector{info.decoder_start_id};
}

class Decoding {
 public:
  Decoding(const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
           const GenerateOptions& options);

  // Logits [B, 1, V] of the first new token, on the model's device.
  Tensor start();
  // Those of the next one, after each sequence got its token.
  Tensor step(const std::vector<std::int64_t>& tokens);
  // Row i becomes what row rows[i] was; `same_memory` as KvCache has it.
  void reorder(const std::vector<std::int64_t>& rows, bool same_memory = false);
  // How many tokens the positions of the model allow.
  std::int64_t steps() const { return steps_; }
  // Whether steps may be recorded by a device that can: the same values, sooner.
  bool records = true;
  std::size_t cache_bytes() const { return cache_.bytes(); }

 private:
  Tensor logits_of(const ModelInput& input);
  // Undefined where the step cannot be recorded.
  Tensor recorded_step(const std::vector<std::int64_t>& tokens);

  const Model& model_;
  nn::KvCache cache_;
  ModelInput first_;
  Tensor memory_;
  std::int64_t steps_ = 0;
  Device device_{};  // of the logits
  std::optional<RecordedStep> recorded_;
};

// The best sequence for each prompt; all of them run at once.
std::vector<std::vector<std::int64_t>> beam_search(
    const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options, const std::vector<std::int64_t>& stops);

}  // namespace qkv

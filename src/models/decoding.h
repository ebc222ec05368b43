// Running a decoder step by step, with or without an encoder in front.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/generation_plan.h"
#include "models/recorded_step.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"

namespace qkv {

// What a decoder reads before the first new token.
inline std::vector<std::int64_t> read_first(const Model& model, const GenerationPlan& plan,
                                            const std::vector<std::int64_t>& prompt) {
  return model.info().kind == ModelKind::decoder ? prompt : std::vector{plan.decoder_start_id};
}

struct DecodingOptions {
  std::int64_t max_new_tokens = 1;     // of each prompt
  std::int64_t decoder_start_id = -1;  // of encoder-decoders
  std::optional<DType> kv_dtype{};
};

class Decoding {
 public:
  Decoding(const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
           const DecodingOptions& options);

  // Logits [B, 1, V] of the first new token, on the model's device.
  Tensor start();
  // Those of the next one, after each sequence got its token.
  Tensor step(const std::vector<std::int64_t>& tokens);
  // Whether there is a position for another step. Sequences stand side by side behind padding, so
  // the longest takes the last position, and it has ended by then.
  bool has_room() const;
  // The same without one, for decoders: `texts` is all that the remaining sequences have read, with
  // the tokens they just got. They are read anew, now that none stands behind the padding that the
  // longest needed.
  Tensor read_anew(const std::vector<std::vector<std::int64_t>>& texts);
  // Row i becomes what row rows[i] was; `same_memory` as KvCache has it.
  void reorder(const std::vector<std::int64_t>& rows, bool same_memory = false);
  // How many tokens the positions of the model allow the longest sequence.
  std::int64_t steps() const { return steps_; }
  // Whether steps may be recorded by a device that can: the same values, sooner.
  bool records = true;
  std::size_t cache_bytes() const { return cache_.bytes(); }

 private:
  void take(const std::vector<std::vector<std::int64_t>>& prompts);
  Tensor logits_of(const ModelInput& input);
  // Undefined where the step cannot be recorded.
  Tensor recorded_step(const std::vector<std::int64_t>& tokens);

  const Model& model_;
  DecodingOptions options_;
  nn::KvCache cache_;
  ModelInput first_;
  Tensor memory_;
  std::int64_t steps_ = 0;
  Device device_{};  // of the logits
  std::optional<RecordedStep> recorded_;
};

// What a plan asks of decoding; Error where max_length leaves a prompt no room for a new token.
DecodingOptions decoding_options(const Model& model,
                                 const std::vector<std::vector<std::int64_t>>& prompts,
                                 const GenerateOptions& options, const GenerationPlan& plan);

// The best sequence for each prompt; all of them run at once.
std::vector<std::vector<std::int64_t>> beam_search(
    const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options, const GenerationPlan& plan);

}  // namespace qkv

// Running a decoder step by step, with or without an encoder in front.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/recorded_step.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"

namespace qkv {

// Where a sequence ends that nothing ends before, and the tokens that the checkpoint forces on it.
// `read` counts what its decoder has read, `given` how much of that it was given.
class Course {
 public:
  Course(const ModelInfo& info, const GenerateOptions& options)
      : info_(info), max_new_tokens_(options.max_new_tokens) {}

  // Whether the next token is the last, being as many as wanted or predicted from the last
  // position.
  bool ends(std::int64_t read, std::int64_t given) const {
    return given + 1 == max_new_tokens_ || read == info_.max_positions;
  }
  // What the next token has to be one of, ascending; empty: any.
  std::vector<std::int64_t> forced(std::int64_t read, std::int64_t given) const {
    if (ends(read, given) && !info_.forced_eos_ids.empty()) return info_.forced_eos_ids;
    if (read == 1 && info_.forced_bos_id >= 0) return {info_.forced_bos_id};
    return {};
  }

 private:
  const ModelInfo& info_;
  std::int64_t max_new_tokens_;
};

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
  std::int64_t max_new_tokens_;
  std::optional<DType> kv_dtype_;
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

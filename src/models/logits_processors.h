// What changes the logits of a sequence before a token is chosen, in the order of transformers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/generation_plan.h"

namespace qkv {

// Whose logits they are.
struct SequenceState {
  std::span<const std::int64_t> prompt;  // the caller's: of a decoder, or what an encoder reads
  std::span<const std::int64_t> read;    // by the decoder so far
  std::int64_t given = 0;                // how many of these are new
};

// Refers to the plan.
class LogitsProcessors {
 public:
  LogitsProcessors(const GenerationPlan& plan, std::int64_t vocabulary);

  // Whether apply() does more than penalize repetition, which sample() does where the logits are.
  bool are_more_than_repetition() const { return more_; }
  bool are_any() const { return more_ || plan_.sampling.repetition_penalty != 1; }

  // Scores are logits, or log-probabilities of beams; -inf forbids a token.
  void apply(std::span<float> scores, const SequenceState& state) const;

 private:
  void forbid_repeated(std::span<float> scores, const SequenceState& state) const;
  void forbid_bad_words(std::span<float> scores, const SequenceState& state) const;
  void forbid_early_end(std::span<float> scores, const SequenceState& state) const;
  void favour_end(std::span<float> scores, const SequenceState& state) const;

  const GenerationPlan& plan_;
  std::vector<std::int64_t> ends_;  // the stops that are in the vocabulary
  bool more_;
};

}  // namespace qkv

// How to generate, with every default decided.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "qkv/generate.h"
#include "qkv/ops.h"

namespace qkv {

inline constexpr std::int64_t kMaxBeams = 1024;
inline constexpr double kMaxLengthPenalty = 100;
inline constexpr double kMinPenalty = 0.01, kMaxPenalty = 100;  // of repetition, in a file

// From the caller, else from the checkpoint, else the default.
struct GenerationPlan {
  std::int64_t max_new_tokens = 0;
  std::int64_t max_length = 0;  // with what the decoder read first; 0: max_new_tokens decides
  std::int64_t min_new_tokens = 0, min_length = 0;
  SampleOptions sampling{};
  std::uint64_t seed = 0;
  std::int64_t beams = 1;
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  double encoder_repetition_penalty = 1;
  std::int64_t no_repeat_ngram_size = 0, encoder_no_repeat_ngram_size = 0;
  std::vector<std::vector<std::int64_t>> bad_words_ids{};
  std::vector<std::int64_t> suppress_tokens{}, begin_suppress_tokens{};
  std::optional<std::pair<std::int64_t, double>> exponential_decay_length_penalty{};
  bool renormalize_logits = false;
  std::int64_t forced_bos_id = -1;
  std::vector<std::int64_t> forced_eos_ids{};
  std::vector<std::int64_t> stops{};
  std::int64_t decoder_start_id = -1;
  std::int64_t max_positions = 0;

  // How many tokens a sequence may get whose decoder read so many first.
  std::int64_t most(std::int64_t read_first) const {
    return max_length > 0 ? max_length - read_first : max_new_tokens;
  }
  // Whether the next token is the last, being as many as wanted or predicted from the last
  // position. `read` counts what the decoder has read, `given` how much of that it was given.
  bool ends(std::int64_t read, std::int64_t given) const {
    return given + 1 >= most(read - given) || read == max_positions;
  }
  // Whether the next token is the first that the model has a choice of.
  bool begins(std::int64_t read, std::int64_t given) const {
    return given == (forced_bos_id >= 0 && read - given == 1 ? 1 : 0);
  }
  // What the next token has to be one of, ascending; empty: any.
  std::vector<std::int64_t> forced(std::int64_t read, std::int64_t given) const;
};

// Error that names what is out of its range, or what the checkpoint asks for and is not
// implemented.
GenerationPlan plan_generation(const ModelInfo& info, const GenerateOptions& options);

}  // namespace qkv

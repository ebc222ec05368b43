// What a checkpoint says about generating from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace qkv {

// When a beam search with enough finished beams ends: when a running one is not likely to beat
// them at its present length (no), at once (yes), or when none can at any length (never).
enum class EarlyStopping : std::uint8_t { no, yes, never };

// generation_config.json; where there is no such file, the same keys of config.json. Absent: it
// says nothing. docs/models.md lists the keys with what becomes of each.
struct GenerationConfig {
  std::string file{};  // that says so, for messages
  std::optional<bool> do_sample{};
  std::optional<double> temperature{}, top_p{}, min_p{};
  std::optional<double> repetition_penalty{}, length_penalty{};
  std::optional<std::int64_t> top_k{}, num_beams{}, no_repeat_ngram_size{};
  std::optional<std::int64_t> max_new_tokens{}, min_new_tokens{};
  std::optional<std::int64_t> max_length{}, min_length{};  // with the prompt of a decoder
  std::optional<EarlyStopping> early_stopping{};
  double encoder_repetition_penalty = 1;
  std::int64_t encoder_no_repeat_ngram_size = 0;
  std::vector<std::vector<std::int64_t>> bad_words_ids{};
  std::vector<std::int64_t> suppress_tokens{}, begin_suppress_tokens{};
  // After so many new tokens the end becomes likelier, by this factor more with each.
  std::optional<std::pair<std::int64_t, double>> exponential_decay_length_penalty{};
  bool renormalize_logits = false;
  // Forced behind the one token a decoder begins with, and as the last of as many as are wanted
  // (ascending; any of them).
  std::int64_t forced_bos_id = -1;
  std::vector<std::int64_t> forced_eos_ids{};
  // What ends a sequence and what a decoder begins with; from config.json where the file has no
  // such key. What ends a text in training is ModelInfo::eos_ids.
  std::vector<std::int64_t> eos_ids{};
  std::int64_t decoder_start_id = -1;
  std::vector<std::string> stop_strings{};
  // "key value" of what would change the result and is not implemented: whatever the mode, when
  // sampling, with beams.
  std::vector<std::string> unsupported{}, unsupported_sampling{}, unsupported_beams{};
};

}  // namespace qkv

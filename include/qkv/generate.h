// Text from a model, one token at a time: greedy, sampled, or by beam search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "qkv/models/model.h"

namespace qkv {

// The checkpoint may force tokens on what is chosen: ModelInfo::forced_bos_id, forced_eos_ids.
struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  double temperature = 0;  // 0 = greedy: always the likeliest token
  // What sampling may choose from, each cutting what the one before it left.
  std::int64_t top_k = 0;  // the k likeliest; 0 = all
  double top_p = 1;        // the likeliest that together reach this probability
  double min_p = 0;        // those at least this share of the likeliest
  // > 1 makes tokens that occurred less likely, by their logits; with beams by log-probabilities
  double repetition_penalty = 1;
  std::uint64_t seed = 0;
  std::int64_t beams = 1;       // > 1: beam search; sampling options are not used
  double length_penalty = 1;    // a beam scores sum of log-probabilities / length^this
  bool early_stopping = false;  // stop when there are `beams` finished ones
  // Of the cached keys and values: bf16 or i8; absent = as the model computes them.
  std::optional<DType> kv_dtype{};
  // A sequence ends with one of these, which is kept. Absent: the model's eos_ids.
  std::optional<std::vector<std::int64_t>> stop_ids{};
  // Called with each token as it is chosen (sequence, token); false ends that sequence. With beams,
  // called for the tokens of the best one at the end.
  std::function<bool(std::size_t sequence, std::int64_t token)> on_token{};
  // Called before each step; false ends all sequences with what they have.
  std::function<bool()> on_step{};
};

// The new tokens of each sequence, as many as its own positions allow: beside longer prompts, too.
// For decoders `prompts` are what is continued, of any lengths; for encoder-decoders what the
// encoder reads.
std::vector<std::vector<std::int64_t>> generate(
    const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options = {});

}  // namespace qkv

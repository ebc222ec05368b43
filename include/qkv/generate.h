// Text from a model, one token at a time: greedy, sampled, or by beam search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "qkv/models/model.h"

namespace qkv {

// What is absent is decided by the checkpoint (ModelInfo::generation), and where that says nothing,
// by the default. What is given wins, so {.temperature = 0, .beams = 1} is greedy with any model.
struct GenerateOptions {
  // Default: 64, or as many as max_length of the checkpoint allows.
  std::optional<std::int64_t> max_new_tokens{};
  std::optional<std::int64_t> min_new_tokens{};  // no stop token before these; default 0
  // 0 = greedy: always the likeliest token. Above 0: sampled, and without the checkpoint's beams.
  // Default: the checkpoint's temperature where its do_sample is true, else 0.
  std::optional<double> temperature{};
  // What sampling may choose from, each cutting what the one before it left.
  std::optional<std::int64_t> top_k{};  // the k likeliest; 0 = all, the default
  std::optional<double> top_p{};        // the likeliest that together reach this; default 1
  std::optional<double> min_p{};        // those at least this share of the likeliest; default 0
  // > 1 makes tokens that occurred less likely, by their logits; with beams by log-probabilities.
  // Default 1.
  std::optional<double> repetition_penalty{};
  // No sequence of so many tokens occurs twice, the prompt of a decoder included; 0 = any may, the
  // default.
  std::optional<std::int64_t> no_repeat_ngram_size{};
  // Sequences of tokens that must not occur, and tokens that must not: ever, or as the first.
  std::optional<std::vector<std::vector<std::int64_t>>> bad_words_ids{};
  std::optional<std::vector<std::int64_t>> suppress_tokens{}, begin_suppress_tokens{};
  std::uint64_t seed = 0;
  // > 1: beam search, up to 1024; sampling options are not used. Default 1.
  std::optional<std::int64_t> beams{};
  std::optional<double>
      length_penalty{};  // a beam scores sum of log-probabilities / length^this: 1
  std::optional<EarlyStopping> early_stopping{};  // default no
  // Of the cached keys and values: bf16 or i8; absent = as the model computes them.
  std::optional<DType> kv_dtype{};
  // A sequence ends with one of these, which is kept. Default: eos_token_id of the checkpoint.
  std::optional<std::vector<std::int64_t>> stop_ids{};
  // Called with each token as it is chosen (sequence, token); false ends that sequence. With beams,
  // called for the tokens of the best one at the end.
  std::function<bool(std::size_t sequence, std::int64_t token)> on_token{};
  // Called before each step; false ends all sequences with what they have.
  std::function<bool()> on_step{};
};

// The new tokens of each sequence, as many as its own positions allow: beside longer prompts, too.
// For decoders `prompts` are what is continued, of any lengths; for encoder-decoders what the
// encoder reads. Error that names the sequence and the token when logits are not numbers.
std::vector<std::vector<std::int64_t>> generate(
    const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options = {});

}  // namespace qkv

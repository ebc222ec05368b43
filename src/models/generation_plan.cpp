#include "models/generation_plan.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "models/family.h"
#include "ops/sample_options.h"

namespace qkv {
namespace {

constexpr std::int64_t kDefaultNewTokens = 64;
constexpr std::int64_t kDefaultTopK = 50;  // transformers', where a checkpoint samples

void check_range(const char* name, std::int64_t value, std::int64_t min, std::int64_t max) {
  check(value >= min && value <= max, "generate: {} must be from {} to {}, got {}", name, min, max,
        value);
}

void check_tokens(const char* name, const std::vector<std::int64_t>& ids, std::int64_t vocabulary) {
  for (const std::int64_t id : ids) check_range(name, id, 0, vocabulary - 1);
}

void check_given(const GenerateOptions& o, std::int64_t vocabulary) {
  if (o.max_new_tokens) check_range("max_new_tokens", *o.max_new_tokens, 0, kMaxPositions);
  if (o.min_new_tokens) check_range("min_new_tokens", *o.min_new_tokens, 0, kMaxPositions);
  check(!o.max_new_tokens || !o.min_new_tokens || *o.min_new_tokens <= *o.max_new_tokens,
        "generate: min_new_tokens must be at most max_new_tokens {}, got {}",
        o.max_new_tokens.value_or(0), o.min_new_tokens.value_or(0));
  if (o.no_repeat_ngram_size) {
    check_range("no_repeat_ngram_size", *o.no_repeat_ngram_size, 0, kMaxPositions);
  }
  if (o.beams) check_range("beams", *o.beams, 1, kMaxBeams);
  const double penalty = o.length_penalty.value_or(1);
  check(std::abs(penalty) <= kMaxLengthPenalty,
        "generate: length_penalty must be from {} to {}, got {}", -kMaxLengthPenalty,
        kMaxLengthPenalty, penalty);
  check(!o.kv_dtype || *o.kv_dtype == DType::bf16 || *o.kv_dtype == DType::i8,
        "generate: kv_dtype must be bf16 or i8, got {}", o.kv_dtype.value_or(DType::f32));
  if (o.bad_words_ids) {
    for (const std::vector<std::int64_t>& word : *o.bad_words_ids) {
      check(!word.empty(), "generate: bad_words_ids has an empty sequence, which is everywhere");
      check_tokens("bad_words_ids", word, vocabulary);
    }
  }
  if (o.suppress_tokens) check_tokens("suppress_tokens", *o.suppress_tokens, vocabulary);
  if (o.begin_suppress_tokens) {
    check_tokens("begin_suppress_tokens", *o.begin_suppress_tokens, vocabulary);
  }
}

void refuse(const GenerationConfig& g, const std::vector<std::string>& keys, const char* remedy) {
  if (keys.empty()) return;
  fail(
      "generate: {}: {} would change what is generated and {} not supported; {}remove {} from the "
      "file",
      g.file, fmt::join(keys, ", "), keys.size() == 1 ? "is" : "are", remedy,
      keys.size() == 1 ? "it" : "them");
}

void plan_lengths(const GenerationConfig& g, const GenerateOptions& o, GenerationPlan& plan) {
  if (o.max_new_tokens || g.max_new_tokens) {
    plan.max_new_tokens = o.max_new_tokens ? *o.max_new_tokens : *g.max_new_tokens;
  } else {
    plan.max_new_tokens = kDefaultNewTokens;
    plan.max_length = g.max_length.value_or(0);
  }
  if (o.min_new_tokens || g.min_new_tokens) {
    plan.min_new_tokens = o.min_new_tokens ? *o.min_new_tokens : *g.min_new_tokens;
  } else {
    plan.min_length = g.min_length.value_or(0);
  }
}

// Who asks for sampling without beams, or for beams, gets it whatever the checkpoint says.
void plan_mode(const GenerationConfig& g, const GenerateOptions& o, GenerationPlan& plan) {
  const bool samples = g.do_sample.value_or(false);
  const bool wants_sampling = o.temperature.value_or(0) > 0;
  plan.beams = o.beams ? *o.beams : wants_sampling ? 1 : g.num_beams.value_or(1);
  check(plan.beams == 1 || o.beams || o.temperature || !samples,
        "generate: {}: do_sample together with num_beams {} is not supported; give a temperature "
        "(0 for the beam search) or the number of beams",
        g.file, plan.beams);
  SampleOptions& s = plan.sampling;
  s.temperature = o.temperature ? *o.temperature : samples ? g.temperature.value_or(1) : 0;
  s.top_k = o.top_k ? *o.top_k : g.top_k.value_or(samples ? kDefaultTopK : 0);
  // Of a share of nothing the likeliest is left, as transformers reads it.
  s.top_p = o.top_p ? *o.top_p : std::max(g.top_p.value_or(1), 1e-300);
  s.min_p = o.min_p ? *o.min_p : g.min_p.value_or(0);
  s.repetition_penalty =
      o.repetition_penalty ? *o.repetition_penalty : g.repetition_penalty.value_or(1);
  check_sample_options("generate", s);
  plan.length_penalty = o.length_penalty ? *o.length_penalty : g.length_penalty.value_or(1);
  plan.early_stopping =
      o.early_stopping ? *o.early_stopping : g.early_stopping.value_or(EarlyStopping::no);
}

}  // namespace

std::vector<std::int64_t> GenerationPlan::forced(std::int64_t read, std::int64_t given) const {
  std::vector<std::int64_t> ids;
  if (ends(read, given) && !forced_eos_ids.empty()) {
    ids = forced_eos_ids;
  } else if (read == 1 && forced_bos_id >= 0) {
    ids = {forced_bos_id};
  }
  if (ids.empty()) return ids;
  const bool is_first = begins(read, given);
  std::erase_if(ids, [&](std::int64_t id) {
    return std::ranges::count(suppress_tokens, id) > 0 ||
           (is_first && std::ranges::count(begin_suppress_tokens, id) > 0);
  });
  check(
      !ids.empty(),
      "generate: suppress_tokens and begin_suppress_tokens leave no token that forced_bos_token_id "
      "or forced_eos_token_id ask for");
  return ids;
}

GenerationPlan plan_generation(const ModelInfo& info, const GenerateOptions& options) {
  check(info.kind != ModelKind::encoder, "generate: a {} is an encoder and does not generate",
        info.family);
  check_given(options, info.vocabulary);
  const GenerationConfig& g = info.generation;
  GenerationPlan plan;
  plan_lengths(g, options, plan);
  plan_mode(g, options, plan);
  plan.seed = options.seed;
  plan.encoder_repetition_penalty = g.encoder_repetition_penalty;
  plan.no_repeat_ngram_size = options.no_repeat_ngram_size ? *options.no_repeat_ngram_size
                                                           : g.no_repeat_ngram_size.value_or(0);
  plan.encoder_no_repeat_ngram_size = g.encoder_no_repeat_ngram_size;
  plan.bad_words_ids = options.bad_words_ids ? *options.bad_words_ids : g.bad_words_ids;
  plan.suppress_tokens = options.suppress_tokens ? *options.suppress_tokens : g.suppress_tokens;
  plan.begin_suppress_tokens =
      options.begin_suppress_tokens ? *options.begin_suppress_tokens : g.begin_suppress_tokens;
  plan.exponential_decay_length_penalty = g.exponential_decay_length_penalty;
  plan.renormalize_logits = g.renormalize_logits;
  plan.forced_bos_id = g.forced_bos_id;
  plan.forced_eos_ids = g.forced_eos_ids;
  plan.stops = options.stop_ids ? *options.stop_ids : g.eos_ids;
  plan.decoder_start_id = g.decoder_start_id;
  plan.max_positions = info.max_positions;
  refuse(g, g.unsupported, "");
  if (plan.beams > 1) {
    refuse(g, g.unsupported_beams, "give beams 1, or ");
  } else if (plan.sampling.temperature > 0) {
    refuse(g, g.unsupported_sampling, "give temperature 0, or ");
  }
  check(g.stop_strings.empty() || options.stop_ids,
        "generate: {}: stop_strings are not known without a tokenizer; give stop_ids", g.file);
  return plan;
}

}  // namespace qkv

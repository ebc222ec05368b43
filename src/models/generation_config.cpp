#include "models/generation_config.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "models/family.h"
#include "models/generation_plan.h"

namespace qkv {
namespace {

std::optional<std::int64_t> integer_if(const Config& c, const char* key, std::int64_t min,
                                       std::int64_t max) {
  if (!c.has(key)) return std::nullopt;
  return c.integer(key, min, max);
}
std::optional<double> number_if(const Config& c, const char* key, double min, double max) {
  if (!c.has(key)) return std::nullopt;
  return c.number(key, min, max);
}

void read_lengths(const Config& c, GenerationConfig& g) {
  g.max_new_tokens = integer_if(c, "max_new_tokens", 1, kMaxPositions);
  g.max_length = integer_if(c, "max_length", 1, kMaxPositions);
  g.min_new_tokens = integer_if(c, "min_new_tokens", 0, kMaxPositions);
  g.min_length = integer_if(c, "min_length", 0, kMaxPositions);
  if (c.has("exponential_decay_length_penalty")) {
    const char* key = "exponential_decay_length_penalty";
    const std::vector<double> values = c.numbers(key, 0, static_cast<double>(kMaxPositions));
    check(values.size() == 2 && values[0] == std::floor(values[0]) && values[1] > 0,
          "{} must be [start, factor], a number of tokens and a factor above 0", c.where(key));
    g.exponential_decay_length_penalty = {static_cast<std::int64_t>(values[0]), values[1]};
  }
}

void read_sampling(const Config& c, GenerationConfig& g) {
  if (c.has("do_sample")) g.do_sample = c.flag("do_sample");
  g.temperature = number_if(c, "temperature", 0, 1e6);
  check(!(g.do_sample.value_or(false) && g.temperature == 0.0),
        "{} must be above 0 where do_sample is true, got 0", c.where("temperature"));
  g.top_k = integer_if(c, "top_k", 0, kMaxVocabulary);
  g.top_p = number_if(c, "top_p", 0, 1);
  g.min_p = number_if(c, "min_p", 0, 1);
  const auto refuse = [&](const char* key, double neutral, double max) {
    const double value = c.number_or(key, neutral, 0, max);
    if (value != neutral) g.unsupported_sampling.push_back(fmt::format("{} {}", key, value));
  };
  refuse("typical_p", 1, 1);
  refuse("top_h", 1, 1);
  refuse("epsilon_cutoff", 0, 1);
  refuse("eta_cutoff", 0, 1);
}

void read_beams(const Config& c, GenerationConfig& g) {
  g.num_beams = integer_if(c, "num_beams", 1, kMaxBeams);
  g.length_penalty = number_if(c, "length_penalty", -kMaxLengthPenalty, kMaxLengthPenalty);
  c.integer_or("num_return_sequences", 1, 1, kMaxBeams);
  if (c.has("early_stopping")) {
    const bool is_text = c.is_text("early_stopping");
    check(!is_text || c.text("early_stopping") == "never",
          "{} must be true, false or \"never\", got {}", c.where("early_stopping"),
          is_text ? c.text("early_stopping") : "");
    g.early_stopping = is_text                    ? EarlyStopping::never
                       : c.flag("early_stopping") ? EarlyStopping::yes
                                                  : EarlyStopping::no;
  }
  if (c.integer_or("num_beam_groups", 1, 1, kMaxBeams) > 1) {
    g.unsupported_beams.push_back("num_beam_groups");
  }
  if (c.number_or("diversity_penalty", 0, -1e6, 1e6) != 0) {
    g.unsupported_beams.push_back("diversity_penalty");
  }
}

void read_processors(const Config& c, std::int64_t vocabulary, GenerationConfig& g) {
  g.repetition_penalty = number_if(c, "repetition_penalty", kMinPenalty, kMaxPenalty);
  g.encoder_repetition_penalty =
      c.number_or("encoder_repetition_penalty", 1, kMinPenalty, kMaxPenalty);
  g.no_repeat_ngram_size = integer_if(c, "no_repeat_ngram_size", 0, kMaxPositions);
  g.encoder_no_repeat_ngram_size =
      c.integer_or("encoder_no_repeat_ngram_size", 0, 0, kMaxPositions);
  g.bad_words_ids = c.integer_lists("bad_words_ids", 0, vocabulary - 1);
  for (std::size_t i = 0; i < g.bad_words_ids.size(); ++i) {
    check(!g.bad_words_ids[i].empty(), "{}[{}] is empty: it would forbid every token",
          c.where("bad_words_ids"), i);
  }
  g.suppress_tokens = c.integers("suppress_tokens", 0, vocabulary - 1);
  g.begin_suppress_tokens = c.integers("begin_suppress_tokens", 0, vocabulary - 1);
  g.renormalize_logits = c.flag_or("renormalize_logits", false);
}

// The tokens that generation has to choose, ascending.
std::vector<std::int64_t> forced_ids(const Config& c, const char* key, std::int64_t vocabulary,
                                     const std::vector<std::int64_t>& suppressed) {
  std::vector<std::int64_t> ids = c.integers(key, 0, vocabulary - 1);
  std::sort(ids.begin(), ids.end());
  const bool had_some = !ids.empty();
  std::erase_if(ids, [&](std::int64_t id) { return std::ranges::count(suppressed, id) > 0; });
  check(!had_some || !ids.empty(), "{}: every token of it is among suppress_tokens, too",
        c.where(key));
  return ids;
}

void read_special_tokens(const Config& c, bool is_file, const ModelInfo& info,
                         GenerationConfig& g) {
  const std::vector<std::int64_t> begin =
      forced_ids(c, "forced_bos_token_id", info.vocabulary, g.suppress_tokens);
  check(begin.size() <= 1, "{} must be one token, got {}", c.where("forced_bos_token_id"),
        begin.size());
  if (!begin.empty()) g.forced_bos_id = begin.front();
  // How configs said so before there was the key.
  if (!is_file && c.flag_or("force_bos_token_to_be_generated", false)) {
    g.forced_bos_id = info.bos_id;
  }
  g.forced_eos_ids = forced_ids(c, "forced_eos_token_id", info.vocabulary, g.suppress_tokens);
  // A file that is silent about these was not written by transformers, and means config.json's.
  g.eos_ids = info.eos_ids;
  if (c.mentions("eos_token_id")) g.eos_ids = c.integers("eos_token_id", 0, kMaxVocabulary);
  g.decoder_start_id = info.decoder_start_id;
  if (c.has("decoder_start_token_id")) {
    const std::vector<std::int64_t> start =
        c.integers("decoder_start_token_id", -1, kMaxVocabulary);
    check(start.size() == 1, "{} must be one token, got {}: one for each sequence is not supported",
          c.where("decoder_start_token_id"), start.size());
    g.decoder_start_id = start.front();
  }
  g.stop_strings = c.texts("stop_strings");
  for (const std::string& stop : g.stop_strings) {
    check(!stop.empty(), "{} has an empty text, which would end every sequence at once",
          c.where("stop_strings"));
  }
}

void find_unsupported(const Config& c, GenerationConfig& g) {
  const double guidance = c.number_or("guidance_scale", 1, -1e6, 1e6);
  if (guidance != 1) g.unsupported.push_back(fmt::format("guidance_scale {}", guidance));
  const double alpha = c.number_or("penalty_alpha", 0, -1e6, 1e6);
  if (alpha > 0 && g.top_k.value_or(0) > 1) {  // contrastive search
    g.unsupported.push_back(fmt::format("penalty_alpha {}", alpha));
  }
  if (c.flag_or("token_healing", false)) g.unsupported.push_back("token_healing true");
  for (const char* key : {"sequence_bias", "watermarking_config", "constraints", "force_words_ids",
                          "dola_layers", "max_time"}) {
    if (c.has(key)) g.unsupported.emplace_back(key);
  }
}

}  // namespace

GenerationConfig read_generation_config(const std::optional<Config>& file, const Config& config,
                                        const ModelInfo& info) {
  const Config& c = file ? *file : config;
  GenerationConfig g;
  g.file = c.name();
  read_lengths(c, g);
  read_sampling(c, g);
  read_beams(c, g);
  read_processors(c, info.vocabulary, g);
  read_special_tokens(c, file.has_value(), info, g);
  find_unsupported(c, g);
  return g;
}

}  // namespace qkv

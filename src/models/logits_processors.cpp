#include "models/logits_processors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/sampling.h"

namespace qkv {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void forbid(std::span<float> scores, std::span<const std::int64_t> ids) {
  for (const std::int64_t id : ids) scores[static_cast<std::size_t>(id)] = kForbidden;
}

// Forbids what would complete an n-gram of `text` behind the end of `read`.
void forbid_ngrams(std::span<float> scores, std::span<const std::int64_t> text,
                   std::span<const std::int64_t> read, std::int64_t ngram) {
  if (ngram <= 0) return;
  const auto size = static_cast<std::size_t>(ngram);
  if (text.size() < size || read.size() + 1 < size) return;
  const std::span<const std::int64_t> last = read.last(size - 1);
  for (std::size_t i = 0; i + size <= text.size(); ++i) {
    const auto next = static_cast<std::size_t>(text[i + size - 1]);
    if (next < scores.size() && std::ranges::equal(text.subspan(i, size - 1), last)) {
      scores[next] = kForbidden;
    }
  }
}

}  // namespace

LogitsProcessors::LogitsProcessors(const GenerationPlan& plan, std::int64_t vocabulary)
    : plan_(plan) {
  for (const std::int64_t id : plan.stops) {
    if (id >= 0 && id < vocabulary) ends_.push_back(id);
  }
  more_ = plan.encoder_repetition_penalty != 1 || plan.no_repeat_ngram_size > 0 ||
          plan.encoder_no_repeat_ngram_size > 0 || !plan.bad_words_ids.empty() ||
          !plan.suppress_tokens.empty() || !plan.begin_suppress_tokens.empty() ||
          (!ends_.empty() && (plan.min_new_tokens > 0 || plan.min_length > 0 ||
                              plan.exponential_decay_length_penalty.has_value()));
}

void LogitsProcessors::apply(std::span<float> scores, const SequenceState& state) const {
  // The encoder's penalty is of what it did not read.
  penalize_repetition(scores, state.prompt, 1 / plan_.encoder_repetition_penalty);
  penalize_repetition(scores, state.read, plan_.sampling.repetition_penalty);
  forbid_repeated(scores, state);
  forbid_bad_words(scores, state);
  forbid_early_end(scores, state);
  favour_end(scores, state);
  forbid(scores, plan_.suppress_tokens);
  if (plan_.begins(static_cast<std::int64_t>(state.read.size()), state.given)) {
    forbid(scores, plan_.begin_suppress_tokens);
  }
}

void LogitsProcessors::forbid_repeated(std::span<float> scores, const SequenceState& state) const {
  forbid_ngrams(scores, state.read, state.read, plan_.no_repeat_ngram_size);
  forbid_ngrams(scores, state.prompt, state.read, plan_.encoder_no_repeat_ngram_size);
}

void LogitsProcessors::forbid_bad_words(std::span<float> scores, const SequenceState& state) const {
  for (const std::vector<std::int64_t>& word : plan_.bad_words_ids) {
    const std::span<const std::int64_t> before = std::span(word).first(word.size() - 1);
    // To end is no bad word.
    if (before.empty() && std::ranges::count(plan_.stops, word.back()) > 0) continue;
    if (before.size() > state.read.size()) continue;
    if (std::ranges::equal(before, state.read.last(before.size()))) {
      forbid(scores, std::span(word).last(1));
    }
  }
}

void LogitsProcessors::forbid_early_end(std::span<float> scores, const SequenceState& state) const {
  if (state.given < plan_.min_new_tokens ||
      static_cast<std::int64_t>(state.read.size()) < plan_.min_length) {
    forbid(scores, ends_);
  }
}

void LogitsProcessors::favour_end(std::span<float> scores, const SequenceState& state) const {
  if (!plan_.exponential_decay_length_penalty) return;
  const auto [start, factor] = *plan_.exponential_decay_length_penalty;
  if (state.given <= start) return;
  const double power = std::pow(factor, static_cast<double>(state.given - start)) - 1;
  for (const std::int64_t id : ends_) {
    float& score = scores[static_cast<std::size_t>(id)];
    if (!std::isfinite(score)) continue;
    const double favoured = score + std::abs(score) * power;
    constexpr double most = std::numeric_limits<float>::max();
    score = static_cast<float>(std::clamp(favoured, -most, most));
  }
}

}  // namespace qkv

// Greedy and sampled generation of batches; beam search is in beam.cpp.
#include "qkv/generate.h"

#include <algorithm>

#include "core/check.h"
#include "core/threads.h"
#include "models/decoding.h"
#include "models/logits_processors.h"
#include "models/sampling.h"
#include "qkv/autograd.h"

namespace qkv {
namespace {

// One sequence as it grows.
struct Sequence {
  std::size_t index;                  // in the caller's order
  std::vector<std::int64_t> history;  // what the decoder has read, for the repetition penalty
};

// What each sequence has read, i64 [B, the longest], with -1 behind the shorter ones.
Tensor occurred_in(const std::vector<Sequence>& active) {
  std::size_t longest = 0;
  for (const Sequence& sequence : active) longest = std::max(longest, sequence.history.size());
  std::vector<std::int64_t> all(active.size() * longest, -1);
  for (std::size_t row = 0; row < active.size(); ++row) {
    std::copy(active[row].history.begin(), active[row].history.end(),
              all.begin() + static_cast<std::ptrdiff_t>(row * longest));
  }
  return Tensor::from(
      all, {static_cast<std::int64_t>(active.size()), static_cast<std::int64_t>(longest)});
}

// Chooses tokens by the rules of one call.
class Chooser {
 public:
  Chooser(const GenerationPlan& plan, const std::vector<std::vector<std::int64_t>>& prompts,
          std::int64_t vocabulary)
      : plan_(plan), prompts_(prompts), processors_(plan, vocabulary) {}

  // The next token of each sequence by logits [B, 1, V]: this waits for them.
  std::vector<std::int64_t> operator()(const Tensor& logits, const std::vector<Sequence>& active,
                                       std::int64_t step) const {
    const auto rows = static_cast<std::int64_t>(active.size());
    std::vector<std::int64_t> draws;
    for (const Sequence& s : active) {
      draws.push_back(sampling_draw(plan_.seed, s.index, static_cast<std::uint64_t>(step)));
    }
    Tensor scores = reshape(logits, {rows, -1}), occurred;
    SampleOptions sampling = plan_.sampling;
    const bool is_processed = processors_.are_more_than_repetition();
    if (is_processed) {
      scores = processed(scores, active, step);
      sampling.repetition_penalty = 1;
    } else if (sampling.repetition_penalty != 1) {
      occurred = occurred_in(active);
    }
    std::vector<std::int64_t> tokens =
        sample(scores, Tensor::from(draws, {rows}), sampling, occurred).to_vector<std::int64_t>();
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      const auto read = static_cast<std::int64_t>(active[row].history.size());
      const std::vector<std::int64_t> forced = plan_.forced(read, step);
      if (tokens[row] < 0 && !is_processed) fail_of_logits(active[row].index, step);
      if (!forced.empty()) tokens[row] = forced.front();  // all are as likely: the first, as ever
      if (tokens[row] < 0) fail_of_no_token(active[row].index, step);
    }
    return tokens;
  }

 private:
  // On the CPU, where what has been read is.
  Tensor processed(const Tensor& logits, const std::vector<Sequence>& active,
                   std::int64_t step) const {
    const Tensor scores = contiguous(to(to(logits, DType::f32), kCpu));
    const auto classes = static_cast<std::size_t>(scores.size(1));
    std::vector<std::uint8_t> good(active.size());
    parallel_for(scores.size(0), [&](std::int64_t i) {
      const auto row = static_cast<std::size_t>(i);
      const std::span<float> values(scores.data<float>() + row * classes, classes);
      good[row] = are_numbers(values) ? 1 : 0;
      if (good[row] == 0) return;
      const Sequence& sequence = active[row];
      processors_.apply(values, {prompts_[sequence.index], sequence.history, step});
    });
    const auto bad = std::find(good.begin(), good.end(), 0);
    if (bad != good.end()) {
      fail_of_logits(active[static_cast<std::size_t>(bad - good.begin())].index, step);
    }
    return scores;
  }

  const GenerationPlan& plan_;
  const std::vector<std::vector<std::int64_t>>& prompts_;
  LogitsProcessors processors_;
};

std::vector<std::vector<std::int64_t>> histories(const std::vector<Sequence>& active) {
  std::vector<std::vector<std::int64_t>> all;
  for (const Sequence& sequence : active) all.push_back(sequence.history);
  return all;
}

}  // namespace

DecodingOptions decoding_options(const Model& model,
                                 const std::vector<std::vector<std::int64_t>>& prompts,
                                 const GenerateOptions& options, const GenerationPlan& plan) {
  std::int64_t most = 1;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto read = static_cast<std::int64_t>(read_first(model, plan, prompts[i]).size());
    check(plan.most(read) > 0,
          "generate: prompt {} has {} tokens, and max_length of {} allows {} with what follows; "
          "give max_new_tokens",
          i, read, model.info().generation.file, plan.max_length);
    most = std::max(most, plan.most(read));
  }
  return {most, plan.decoder_start_id, options.kv_dtype};
}

Decoding::Decoding(const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
                   const DecodingOptions& options)
    : model_(model), options_(options) {
  take(prompts);
  if (model.info().kind == ModelKind::decoder) return;
  check(options.decoder_start_id >= 0,
        "generate: config.json of this {} has no decoder_start_token_id", model.info().family);
  memory_ = model({.ids = first_.ids, .mask = first_.mask}).memory;
}

void Decoding::take(const std::vector<std::vector<std::int64_t>>& prompts) {
  const ModelInfo& info = model_.info();
  const auto batch = static_cast<std::int64_t>(prompts.size());
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    check(!prompts[i].empty(), "generate: prompt {} is empty", i);
    longest = std::max(longest, static_cast<std::int64_t>(prompts[i].size()));
  }
  const bool is_decoder = info.kind == ModelKind::decoder;
  // Decoders are padded on the left, so that all continue at the same place; encoders on the right.
  std::vector<std::int64_t> ids(static_cast<std::size_t>(batch * longest),
                                std::max<std::int64_t>(info.pad_id, 0));
  Tensor mask = Tensor::zeros({batch, longest}, {DType::u8});
  bool padded = false;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::vector<std::int64_t>& prompt = prompts[static_cast<std::size_t>(b)];
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t at = b * longest + (is_decoder ? longest - length : 0);
    std::copy(prompt.begin(), prompt.end(), ids.begin() + at);
    std::fill_n(mask.data<std::uint8_t>() + at, length, std::uint8_t{1});
    padded |= length < longest;
  }
  first_ = {.ids = Tensor::from(ids, {batch, longest}), .mask = padded ? mask : Tensor()};

  const std::int64_t limit = info.max_positions;
  const std::int64_t start = is_decoder ? longest : 1;
  check(limit == 0 || start <= limit,
        "generate: a prompt of {} tokens is longer than the {} positions of the model", start,
        limit);
  steps_ = options_.max_new_tokens;
  if (limit > 0) steps_ = std::min(steps_, limit - start + 1);
  cache_ = nn::KvCache(start + std::max<std::int64_t>(steps_, 1), options_.kv_dtype);
}

bool Decoding::has_room() const {
  const std::int64_t limit = model_.info().max_positions;
  return limit == 0 || cache_.length() < limit;
}

Tensor Decoding::read_anew(const std::vector<std::vector<std::int64_t>>& texts) {
  recorded_.reset();  // it knows where the tensors of the cache were
  take(texts);
  return logits_of(first_);
}

Tensor Decoding::start() {
  if (model_.info().kind == ModelKind::decoder) return logits_of(first_);
  const std::vector<std::int64_t> begin(static_cast<std::size_t>(first_.ids.size(0)),
                                        options_.decoder_start_id);
  return step(begin);
}

Tensor Decoding::recorded_step(const std::vector<std::int64_t>& tokens) {
  const bool may = records && device_ != kCpu && model_.info().kind == ModelKind::decoder &&
                   !cache_.visible.defined();
  if (!may) return {};
  const Tensor logits = if_recordable([&] {
    if (!recorded_) {
      recorded_.emplace(model_, cache_, static_cast<std::int64_t>(tokens.size()), device_);
    }
    return (*recorded_)(tokens);
  });
  if (logits.defined()) return logits;
  records = false;
  recorded_.reset();
  return {};
}

Tensor Decoding::step(const std::vector<std::int64_t>& tokens) {
  if (Tensor logits = recorded_step(tokens); logits.defined()) return logits;
  const Tensor ids = Tensor::from(tokens, {static_cast<std::int64_t>(tokens.size()), 1});
  if (model_.info().kind == ModelKind::decoder) return logits_of({.ids = ids});
  return logits_of({.mask = first_.mask, .decoder_ids = ids, .memory = memory_});
}

Tensor Decoding::logits_of(const ModelInput& input) {
  Tensor logits = model_(input, {.cache = &cache_, .last_logits_only = true}).logits;
  check(logits.defined(), "generate: a {} has no head to predict with", model_.info().architecture);
  device_ = logits.device();
  return logits;
}

void Decoding::reorder(const std::vector<std::int64_t>& rows, bool same_memory) {
  recorded_.reset();  // it knows where the tensors of the cache were
  cache_.reorder(rows, same_memory);
  if (!memory_.defined() || same_memory) return;
  const auto pick = [&](const Tensor& x) {
    if (!x.defined()) return x;
    std::vector<Tensor> parts;
    for (const std::int64_t row : rows) parts.push_back(slice(x, 0, row, row + 1));
    return concat(parts, 0);
  };
  // The layers have their keys and values of it; what is left of it is its shape.
  memory_ = slice(memory_, 0, 0, 1);
  memory_ =
      expand(memory_, {static_cast<std::int64_t>(rows.size()), memory_.size(1), memory_.size(2)});
  first_.mask = pick(first_.mask);
}

std::vector<std::vector<std::int64_t>> generate(
    const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options) {
  const GenerationPlan plan = plan_generation(model.info(), options);
  const TapePause pause;
  std::vector<std::vector<std::int64_t>> results(prompts.size());
  if (prompts.empty() || options.max_new_tokens == 0) return results;
  if (plan.beams > 1) {
    results = beam_search(model, prompts, options, plan);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      for (const std::int64_t token : results[i]) {
        if (options.on_token && !options.on_token(i, token)) break;
      }
    }
    return results;
  }

  const Chooser choose(plan, prompts, model.info().vocabulary);
  Decoding decoding(model, prompts, decoding_options(model, prompts, options, plan));
  std::vector<Sequence> active;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    active.push_back({i, read_first(model, plan, prompts[i])});
  }
  Tensor logits = decoding.start();
  for (std::int64_t step = 0; !active.empty(); ++step) {
    const std::vector<std::int64_t> chosen = choose(logits, active, step);
    std::vector<std::int64_t> tokens, rows;
    std::vector<Sequence> still;
    for (std::size_t row = 0; row < active.size(); ++row) {
      Sequence& sequence = active[row];
      const std::int64_t token = chosen[row];
      const bool is_last = plan.ends(static_cast<std::int64_t>(sequence.history.size()), step);
      results[sequence.index].push_back(token);
      sequence.history.push_back(token);
      const bool goes_on = !options.on_token || options.on_token(sequence.index, token);
      const bool is_stop = std::ranges::count(plan.stops, token) > 0;
      if (!goes_on || is_stop || is_last) continue;
      tokens.push_back(token);
      rows.push_back(static_cast<std::int64_t>(row));
      still.push_back(std::move(sequence));
    }
    const bool some_ended = still.size() < active.size();
    active = std::move(still);
    if (active.empty() || (options.on_step && !options.on_step())) break;
    if (!decoding.has_room()) {
      logits = decoding.read_anew(histories(active));
      continue;
    }
    if (some_ended) decoding.reorder(rows);
    logits = decoding.step(tokens);
  }
  return results;
}

}  // namespace qkv

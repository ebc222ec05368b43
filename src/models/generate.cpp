// Greedy and sampled generation of batches; beam search is in beam.cpp.
#include "qkv/generate.h"

#include <algorithm>

#include "core/check.h"
#include "models/decoding.h"
#include "models/sampling.h"
#include "ops/sample_options.h"
#include "qkv/autograd.h"

namespace qkv {
namespace {

void check_options(const GenerateOptions& o) {
  check(o.max_new_tokens >= 0, "generate: max_new_tokens must not be negative, got {}",
        o.max_new_tokens);
  check_sample_options("generate", sample_options(o));
  check(!o.kv_dtype || *o.kv_dtype == DType::bf16 || *o.kv_dtype == DType::i8,
        "generate: kv_dtype must be bf16 or i8, got {}", o.kv_dtype.value_or(DType::f32));
  check(o.beams >= 1, "generate: beams must be at least 1, got {}", o.beams);
}

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

// The next token of each sequence, chosen on the device of the logits [B, 1, V]: this waits for it.
std::vector<std::int64_t> choose(const Tensor& logits, const std::vector<Sequence>& active,
                                 const GenerateOptions& options, const Course& course,
                                 std::int64_t step) {
  const auto rows = static_cast<std::int64_t>(active.size());
  std::vector<std::int64_t> draws;
  for (const Sequence& sequence : active) {
    draws.push_back(sampling_draw(options.seed, sequence.index, static_cast<std::uint64_t>(step)));
  }
  std::vector<std::int64_t> tokens =
      sample(reshape(logits, {rows, -1}), Tensor::from(draws, {rows}), sample_options(options),
             options.repetition_penalty != 1 ? occurred_in(active) : Tensor())
          .to_vector<std::int64_t>();
  check(std::find(tokens.begin(), tokens.end(), -1) == tokens.end(),
        "generate: the logits are not numbers; the model or its input is broken");
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto read = static_cast<std::int64_t>(active[row].history.size());
    const std::vector<std::int64_t> forced = course.forced(read, step);
    if (!forced.empty()) tokens[row] = forced.front();  // all are as likely: the first, as ever
  }
  return tokens;
}

std::vector<std::vector<std::int64_t>> histories(const std::vector<Sequence>& active) {
  std::vector<std::vector<std::int64_t>> all;
  for (const Sequence& sequence : active) all.push_back(sequence.history);
  return all;
}

}  // namespace

Decoding::Decoding(const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
                   const GenerateOptions& options)
    : model_(model), max_new_tokens_(options.max_new_tokens), kv_dtype_(options.kv_dtype) {
  take(prompts);
  if (model.info().kind == ModelKind::decoder) return;
  check(model.info().decoder_start_id >= 0,
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
  steps_ = max_new_tokens_;
  if (limit > 0) steps_ = std::min(steps_, limit - start + 1);
  cache_ = nn::KvCache(start + std::max<std::int64_t>(steps_, 1), kv_dtype_);
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
                                        model_.info().decoder_start_id);
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
  check_options(options);
  check(model.info().kind != ModelKind::encoder,
        "generate: a {} is an encoder and does not generate", model.info().family);
  const TapePause pause;
  std::vector<std::vector<std::int64_t>> results(prompts.size());
  if (prompts.empty() || options.max_new_tokens == 0) return results;
  const std::vector<std::int64_t> stops =
      options.stop_ids ? *options.stop_ids : model.info().eos_ids;
  if (options.beams > 1) {
    results = beam_search(model, prompts, options, stops);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      for (const std::int64_t token : results[i]) {
        if (options.on_token && !options.on_token(i, token)) break;
      }
    }
    return results;
  }

  const Course course(model.info(), options);
  Decoding decoding(model, prompts, options);
  std::vector<Sequence> active;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    active.push_back({i, read_first(model.info(), prompts[i])});
  }
  Tensor logits = decoding.start();
  for (std::int64_t step = 0; !active.empty(); ++step) {
    const std::vector<std::int64_t> chosen = choose(logits, active, options, course, step);
    std::vector<std::int64_t> tokens, rows;
    std::vector<Sequence> still;
    for (std::size_t row = 0; row < active.size(); ++row) {
      Sequence& sequence = active[row];
      const std::int64_t token = chosen[row];
      const bool is_last = course.ends(static_cast<std::int64_t>(sequence.history.size()), step);
      results[sequence.index].push_back(token);
      sequence.history.push_back(token);
      const bool goes_on = !options.on_token || options.on_token(sequence.index, token);
      const bool is_stop = std::find(stops.begin(), stops.end(), token) != stops.end();
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

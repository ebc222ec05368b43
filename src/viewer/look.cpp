// One pass over a text, with everything that attention did on the way.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/order.h"
#include "qkv/generate.h"
#include "qkv/ops.h"
#include "qkv/viewer.h"
#include "viewer/spelling.h"

namespace qkv {
namespace {

constexpr std::int64_t kLongestAnswer = 64;
constexpr std::size_t kChoices = 8;

using Ids = std::vector<std::int64_t>;

Tensor one_row(const Ids& ids) {
  return Tensor::from(ids, {1, static_cast<std::int64_t>(ids.size())});
}

// Computes the attention once more, for its statistics, and keeps what the weights follow from.
SeenLayer seen(const nn::TracedAttention& traced) {
  SeenLayer layer;
  layer.options = traced.options;
  layer.options.statistics = Statistics::all;
  AttentionForward forward =
      attention_forward(traced.queries, traced.keys, traced.values, layer.options);
  const auto home = [](Tensor& t) {
    if (t.defined()) t = to(t, Device{});
  };
  AttentionStatistics& s = forward.statistics;
  for (Tensor* t : {&s.max_logit, &s.score_mean, &s.score_var, &s.entropy, &s.entropy_mean,
                    &s.entropy_relative, &s.top_weight, &s.top_index, &s.saturation, &s.received}) {
    home(*t);
  }
  Mask& mask = layer.options.mask;
  Bias& bias = layer.options.bias;
  for (Tensor* t : {&mask.allowed_pairs, &mask.global_positions, &bias.values, &bias.slopes,
                    &bias.table, &forward.lse}) {
    home(*t);
  }
  layer.queries = contiguous(to(traced.queries, Device{}));  // not a view that holds the values too
  layer.keys = contiguous(to(traced.keys, Device{}));
  layer.lse = forward.lse;
  layer.statistics = s;
  return layer;
}

// Sends the attentions of a stack to their maps, by index: a list may move as it grows.
void watch(nn::Trace& trace, AttentionPicture& picture, const LookOptions& options,
           std::size_t self, std::size_t cross = 0) {
  trace.on_attention = [&picture, &options, self, cross](const nn::TracedAttention& traced) {
    check(!options.cancelled || !options.cancelled(), "look: cancelled");
    picture.maps[traced.cross ? cross : self].layers.push_back(seen(traced));
  };
}

std::vector<TokenChoice> choices_of(std::vector<float> logits, bool each_by_itself,
                                    const std::function<std::string(std::int64_t)>& name) {
  const Tensor row = Tensor::from(logits, {1, static_cast<std::int64_t>(logits.size())});
  std::vector<float> p = softmax(row).to_vector<float>();
  if (each_by_itself) {
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = 1 / (1 + std::exp(-logits[i]));
  }
  Ids order(p.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  const std::size_t count = std::min(kChoices, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int64_t a, std::int64_t b) {
                      return is_larger(p[a], p[b]) || (!is_larger(p[b], p[a]) && a < b);
                    });
  std::vector<TokenChoice> choices;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t id = order[i];
    choices.push_back({{id, viewer::printable(name(id))}, p[static_cast<std::size_t>(id)]});
  }
  return choices;
}

std::vector<float> logits_at(const Tensor& logits, std::int64_t position) {
  return to(to(slice(logits, 1, position, position + 1), Device{}), DType::f32).to_vector<float>();
}

void answer_encoder(const ModelOutput& output, const LookInput& input, const TokenSpelling& names,
                    AttentionPicture& picture) {
  if (!output.logits.defined()) return;
  if (picture.model.classes > 0) {
    const auto label = [&](std::int64_t id) {
      const auto& labels = picture.model.labels;
      const auto at = static_cast<std::size_t>(id);
      return at < labels.size() ? labels[at] : "class " + std::to_string(id);
    };
    const std::vector<float> logits =
        to(to(output.logits, Device{}), DType::f32).to_vector<float>();
    picture.answers.push_back({-1, choices_of(logits, picture.model.multi_label, label)});
    return;
  }
  for (std::size_t i = 0; i < input.ids.size(); ++i) {
    if (input.ids[i] != input.mask_id) continue;
    const auto position = static_cast<std::int64_t>(i);
    picture.answers.push_back(
        {position, choices_of(logits_at(output.logits, position), false, names.output)});
  }
}

Ids written_by(const Model& model, const LookInput& input, const LookOptions& options,
               std::int64_t most) {
  GenerateOptions generation{.max_new_tokens = most, .temperature = 0, .beams = options.beams};
  generation.on_step = options.on_step;
  return generate(model, {input.ids}, generation).front();
}

void look_at_encoder(const Model& model, const LookInput& input, const LookOptions& options,
                     const TokenSpelling& names, AttentionPicture& picture) {
  picture.tokens.push_back({"source", viewer::spelt(input.ids, names.input)});
  picture.maps.push_back({"encoder", "source", "source", {}});
  nn::Trace trace;
  watch(trace, picture, options, 0);
  const ModelOutput output = model({.ids = one_row(input.ids)}, {.trace = &trace});
  answer_encoder(output, input, names, picture);
}

void look_at_decoder(const Model& model, const LookInput& input, const LookOptions& options,
                     const TokenSpelling& names, AttentionPicture& picture) {
  Ids ids = input.ids;
  picture.prompt_tokens = static_cast<std::int64_t>(ids.size());
  if (options.new_tokens > 0) {
    const Ids written = written_by(model, input, options, options.new_tokens);
    if (names.text) picture.written = names.text(written);
    ids.insert(ids.end(), written.begin(), written.end());
    // The last token needs no position until it is read.
    const auto most = static_cast<std::size_t>(model.info().max_positions);
    if (most > 0 && ids.size() > most) ids.resize(std::max(most, input.ids.size()));
  }
  picture.tokens.push_back({"target", viewer::spelt(ids, names.input)});
  picture.maps.push_back({"decoder", "target", "target", {}});
  nn::Trace trace;
  watch(trace, picture, options, 0);
  const ModelOutput output =
      model({.ids = one_row(ids)}, {.trace = &trace, .last_logits_only = true});
  picture.answers.push_back({-1, choices_of(logits_at(output.logits, 0), false, names.output)});
}

void look_at_both(const Model& model, const LookInput& input, const LookOptions& options,
                  const TokenSpelling& names, AttentionPicture& picture) {
  const std::int64_t most = options.new_tokens > 0 ? options.new_tokens : kLongestAnswer;
  const Ids written = input.target.empty() ? written_by(model, input, options, most) : input.target;
  check(!written.empty(), "look: the model wrote nothing; give it a target");
  if (names.text) picture.written = names.text(written);
  const Tensor reads = model.decoder_inputs(one_row(written));
  picture.tokens.push_back({"source", viewer::spelt(input.ids, names.input)});
  picture.tokens.push_back(
      {"target", viewer::spelt(to(reads, DType::i64).to_vector<std::int64_t>(), names.output)});
  picture.tokens.push_back({"written", viewer::spelt(written, names.output)});
  // A row of cross-attention belongs to the token it led to, not to the one that was read.
  picture.maps = {{"encoder", "source", "source", {}},
                  {"cross", "written", "source", {}},
                  {"decoder", "target", "target", {}}};
  nn::Trace encoder_trace, trace;
  watch(encoder_trace, picture, options, 0);
  watch(trace, picture, options, 2, 1);
  model({.ids = one_row(input.ids), .decoder_ids = reads},
        {.trace = &trace, .encoder_trace = &encoder_trace});
}

}  // namespace

AttentionPicture look(const Model& model, const LookInput& input, const LookOptions& options) {
  check(!input.ids.empty(), "look: there is no token to look at");
  AttentionPicture picture;
  picture.model = model.info();
  picture.text = input.text;
  const TokenSpelling names = viewer::complete(input.spelling);
  switch (picture.model.kind) {
    case ModelKind::encoder: look_at_encoder(model, input, options, names, picture); break;
    case ModelKind::decoder: look_at_decoder(model, input, options, names, picture); break;
    case ModelKind::encoder_decoder: look_at_both(model, input, options, names, picture); break;
  }
  return picture;
}

}  // namespace qkv

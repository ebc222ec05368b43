#include "train/evaluate.h"

#include <algorithm>
#include <cmath>

#include "core/backend.h"
#include "core/check.h"
#include "core/threads.h"
#include "qkv/bleu.h"
#include "qkv/generate.h"
#include "qkv/ops.h"
#include "qkv/translate.h"

namespace qkv {
namespace {

struct Counts {
  double loss = 0;
  std::int64_t tokens = 0, right = 0;
};

// Targets whose logit is the largest of their row.
std::int64_t count_right(const Tensor& logits, const Tensor& labels) {
  const Tensor rows = contiguous(to(to(logits, DType::f32), kCpu));
  const std::int64_t classes = rows.size(-1), count = rows.numel() / classes;
  const std::vector<std::int64_t> wanted = to(labels, DType::i64).to_vector<std::int64_t>();
  std::vector<std::uint8_t> is_right(static_cast<std::size_t>(count), 0);
  const float* data = rows.data<float>();
  parallel_for(count, [&](std::int64_t i) {
    if (wanted[static_cast<std::size_t>(i)] < 0) return;
    const float* row = data + i * classes;
    is_right[static_cast<std::size_t>(i)] =
        std::max_element(row, row + classes) - row == wanted[static_cast<std::size_t>(i)] ? 1 : 0;
  });
  return std::count(is_right.begin(), is_right.end(), 1);
}

void count_batch(const Model& model, const Batch& batch, Counts& counts) {
  ModelInput input = batch.input;
  const bool is_pair = model.info().kind == ModelKind::encoder_decoder;
  if (is_pair) input.decoder_ids = model.decoder_inputs(batch.labels);
  Tensor logits = model(input).logits, labels = batch.labels;
  check(logits.defined(), "train: a {} has no head to predict with", model.info().architecture);
  if (model.info().kind == ModelKind::decoder) {
    logits = slice(logits, 1, 0, logits.size(1) - 1);
    labels = slice(labels, 1, 1, labels.size(1));
  }
  logits = contiguous(logits);
  labels = contiguous(labels);
  const std::vector<std::int64_t> wanted = labels.to_vector<std::int64_t>();
  const auto tokens = std::count_if(wanted.begin(), wanted.end(), [](auto w) { return w >= 0; });
  if (tokens == 0) return;
  const double loss = to(cross_entropy(logits, labels), kCpu).to_vector<float>()[0];
  counts.loss += loss * static_cast<double>(tokens);
  counts.tokens += tokens;
  counts.right += count_right(logits, labels);
}

double bleu_of(const Judged& judged, std::int64_t examples) {
  std::vector<std::string> sources, references;
  for (std::int64_t i = 0; i < examples; ++i) {
    const ExampleText text = judged.valid->text(i);
    sources.push_back(text.source);
    references.push_back(text.target);
  }
  const std::vector<std::string> hypotheses =
      translate(judged.model, judged.tokenizer, sources, {.beams = 1});
  return bleu(hypotheses, {references}).score;
}

std::string continued(const Judged& judged, const std::string& text) {
  if (judged.model.info().kind == ModelKind::encoder_decoder) {
    return translate(judged.model, judged.tokenizer, {text}, {.beams = 1})[0];
  }
  std::vector<std::int64_t> ids = judged.tokenizer.encode(text);
  if (ids.empty()) return "";
  const auto tokens =
      generate(judged.model, {ids}, {.max_new_tokens = 48, .temperature = 0, .beams = 1})[0];
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  return judged.tokenizer.decode(ids, {.skip_out_of_range = true});
}

}  // namespace

MeanWeights::MeanWeights(const Optimizer& optimizer) {
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const Tensor& mean = optimizer.state()[i].ema;
    if (!mean.defined()) continue;
    Tensor parameter = optimizer.parameters()[i];
    Tensor kept = Tensor::empty(parameter.shape(), {parameter.dtype(), parameter.device()});
    backend(parameter.device()).copy(parameter, kept);
    backend(parameter.device()).copy(mean, parameter);
    parameters_.push_back(parameter);
    kept_.push_back(kept);
  }
}

MeanWeights::~MeanWeights() {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    backend(kept_[i].device()).copy(kept_[i], parameters_[i]);
  }
}

Evaluation evaluate(const Judged& judged, const TrainConfig& config) {
  Evaluation result;
  const Model& model = judged.model;
  if (judged.valid != nullptr) {
    Counts counts;
    const std::int64_t limit = config.evaluate_examples;
    const std::int64_t batches = judged.valid->batches(0), examples = judged.valid->examples();
    // Batches are in the order of lengths: every nth stands for all.
    const std::int64_t nth = limit == 0 ? 1 : std::max<std::int64_t>(1, examples / limit);
    for (std::int64_t b = std::min(nth / 2, batches - 1); b < batches; b += nth) {
      count_batch(model, judged.valid->batch({0, b}), counts);
    }
    const auto tokens = static_cast<double>(std::max<std::int64_t>(counts.tokens, 1));
    result.loss = counts.loss / tokens;
    result.perplexity = std::exp(result.loss);
    result.accuracy = static_cast<double>(counts.right) / tokens;
    if (config.data.task == Task::sequence_to_sequence && config.measure_bleu) {
      const std::int64_t all = judged.valid->examples();
      result.bleu = bleu_of(judged, limit == 0 ? all : std::min(all, limit));
    }
  }
  if (model.info().kind != ModelKind::encoder) {
    for (const std::string& text : config.samples) {
      result.samples.push_back({text, continued(judged, text)});
    }
  }
  return result;
}

double merit(const Evaluation& evaluation) {
  return evaluation.bleu ? *evaluation.bleu : -evaluation.loss;
}

}  // namespace qkv

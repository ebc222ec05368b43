#include "train/fault.h"

#include "core/check.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"
#include "train/finite.h"
#include "train/health.h"

namespace qkv {
namespace {

// The first head of [B, H, S, D] with something that is not finite; -1: none. All: `heads`.
struct Heads {
  std::int64_t first = -1, count = 0, total = 0;
};
Heads faulty_heads(const Tensor& x) {
  Heads heads;
  if (!x.defined()) return heads;
  heads.total = x.size(1);
  for (std::int64_t h = 0; h < heads.total; ++h) {
    if (is_finite(slice(x, 1, h, h + 1))) continue;
    if (heads.first < 0) heads.first = h;
    ++heads.count;
  }
  return heads;
}

std::string told(const std::string& layer, const Heads& heads, const char* what) {
  if (heads.count == heads.total && heads.total > 1) {
    return fmt::format("what enters {} is not finite: the {} of all {} heads", layer, what,
                       heads.total);
  }
  return fmt::format("{} head {}: its {} are not finite", layer, heads.first, what);
}

// " (NAME is not finite from row 32 on)": a weight that is broken itself.
std::string broken_weight(Model& model) {
  for (const nn::Parameter& p : nn::parameters(model)) {
    if (is_finite(p.value)) continue;
    const std::int64_t rows = p.value.size(0);
    std::int64_t row = 0;
    while (row + 1 < rows && is_finite(slice(p.value, 0, row, row + 1))) ++row;
    return fmt::format(" ({} is not finite from row {} on)", p.name, row);
  }
  return "";
}

std::string fault_of_forward(const nn::Training& pass) {
  for (const nn::AttentionHealth& h : pass.health) {
    if (const Heads q = faulty_heads(h.queries); q.count > 0) return told(h.name, q, "queries");
    if (const Heads k = faulty_heads(h.keys); k.count > 0) return told(h.name, k, "keys");
    const Tensor& logits = h.statistics.max_logit;
    const Heads s = faulty_heads(reshape(logits, {logits.size(0), logits.size(1), 1, 1}));
    if (s.count > 0) return told(h.name, s, "scores");
  }
  return "";
}

std::string fault_of_backward(Model& model, const nn::Training& pass, const Gradients& gradients) {
  for (auto h = pass.health.rbegin(); h != pass.health.rend(); ++h) {
    const Heads q = faulty_heads(gradients[h->queries]);
    if (q.count > 0) return told(h->name, q, "gradients of queries");
    const Heads k = faulty_heads(gradients[h->keys]);
    if (k.count > 0) return told(h->name, k, "gradients of keys");
  }
  for (const nn::Parameter& p : nn::parameters(model)) {
    if (!is_finite(gradients[p.value])) return p.name + ": its gradient is not finite";
  }
  return "";
}

}  // namespace

std::string find_fault(Model& model, const FaultyStep& step) {
  Tape tape;
  nn::Training pass{
      .seed = step.seed, .step = step.step, .dtype = step.dtype, .statistics = kHealthStatistics};
  const Tensor loss = model.loss(step.batch->input, step.batch->labels, {.training = &pass});
  {
    const TapePause pause;
    if (const std::string fault = fault_of_forward(pass); !fault.empty()) {
      return fault + broken_weight(model);
    }
    if (!is_finite(loss)) {
      return "the loss is not finite, though all scores are" + broken_weight(model);
    }
  }
  watch_scores(tape, pass);
  const Gradients gradients = tape.backward(loss);
  const TapePause pause;
  const std::string fault = fault_of_backward(model, pass, gradients);
  return fault.empty() ? "it did not show when the step was run again" : fault;
}

}  // namespace qkv

#include "core/backend.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check_defined("cross_entropy", "logits", logits);
  check_defined("cross_entropy", "targets", targets);
  check(is_floating(logits.dtype()) && logits.rank() >= 1 && logits.size(-1) > 0,
        "cross_entropy: logits must be floating point [..., V], got {} {}", logits.dtype(),
        logits.shape());
  const std::int64_t classes = logits.size(-1), rows = logits.numel() / classes;
  const std::span<const std::int64_t> wanted = logits.shape().extents();
  check((targets.dtype() == DType::i64 || targets.dtype() == DType::i32) &&
            targets.shape() == Shape(wanted.first(wanted.size() - 1)),
        "cross_entropy: targets must be i32 or i64 with the shape of logits {} without its last "
        "axis, got {} {}",
        logits.shape(), targets.dtype(), targets.shape());
  check(options.label_smoothing >= 0 && options.label_smoothing < 1,
        "cross_entropy: label_smoothing must be in [0, 1), got {}", options.label_smoothing);

  CrossEntropyProblem problem;
  problem.logits = reshape(logits, {rows, classes});
  const bool is_rows = problem.logits.stride(1) == 1 && problem.logits.stride(0) >= classes;
  if (!is_rows) problem.logits = contiguous(problem.logits);
  problem.targets = contiguous(to(targets, DType::i64));
  problem.ignore_index = options.ignore_index;
  problem.label_smoothing = static_cast<float>(options.label_smoothing);
  problem.z_loss = static_cast<float>(options.z_loss);
  // On another device a wrong target is known too late to be refused: its loss is NaN.
  if (problem.targets.device() == kCpu) {
    for (const std::int64_t target : problem.targets.to_vector<std::int64_t>()) {
      check(target == options.ignore_index || (target >= 0 && target < classes),
            "cross_entropy: target {} is not one of {} classes, nor the ignored {}", target,
            classes, options.ignore_index);
    }
  }
  problem.targets = to(problem.targets, logits.device());
  problem.lse = Tensor::empty({rows}, {DType::f32, logits.device()});
  problem.loss = Tensor::empty({}, {DType::f32, logits.device()});
  problem.count = Tensor::empty({}, {DType::f32, logits.device()});
  backend(logits.device()).cross_entropy(problem);
  return Tape::record(
      "cross_entropy", {problem.logits}, problem.loss, [problem](const Tensor& dloss) {
        CrossEntropyBackward backward;
        backward.forward = &problem;
        backward.dloss = to(dloss, DType::f32);
        const Tensor& x = problem.logits;
        const std::int64_t apart = x.stride(0), strides[] = {apart, 1};
        // Logits are the largest tensor of many a model. If nobody can look at them any more, their
        // gradient takes their place.
        backward.dlogits = !x.is_shared()
                               ? x
                               : Tensor::empty({x.size(0) * apart}, {x.dtype(), x.device()})
                                     .view(x.shape(), strides, 0);
        backend(problem.logits.device()).cross_entropy_backward(backward);
        return std::vector{backward.dlogits};
      });
}

}  // namespace qkv

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/backend.h"
#include "core/sampling.h"
#include "ops/checks.h"
#include "ops/sample_options.h"

namespace qkv {
namespace {

// log2(e) / temperature, finite whatever the temperature.
double rate_of(double temperature) {
  if (temperature == 0) return 0;
  return std::clamp(1 / std::log(2.0) / temperature, 1e-300, 1e300);
}

// i64, contiguous, on the device of logits.
Tensor whole_numbers(const Tensor& x, Device device) {
  return to(contiguous(to(x, DType::i64)), device);
}

bool is_whole(const Tensor& x) { return x.dtype() == DType::i64 || x.dtype() == DType::i32; }

}  // namespace

void check_sample_options(const char* op, const SampleOptions& o) {
  check(o.temperature >= 0 && std::isfinite(o.temperature),
        "{}: temperature must be finite and not negative, got {}", op, o.temperature);
  check(o.top_k >= 0, "{}: top_k must not be negative, got {}", op, o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "{}: top_p must be in (0, 1], got {}", op, o.top_p);
  check(o.min_p >= 0 && o.min_p <= 1, "{}: min_p must be in [0, 1], got {}", op, o.min_p);
  check(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty),
        "{}: repetition_penalty must be positive and finite, got {}", op, o.repetition_penalty);
}

Tensor sample(const Tensor& logits, const Tensor& draws, const SampleOptions& options,
              const Tensor& occurred) {
  check_floating("sample", "logits", logits);
  check_sample_options("sample", options);
  check(logits.rank() >= 1 && logits.size(-1) > 0 && logits.size(-1) <= kMaxChoices,
        "sample: logits must be [..., V] with V from 1 to {}, got {}", kMaxChoices, logits.shape());
  const std::span<const std::int64_t> extents = logits.shape().extents();
  const Shape shape(extents.first(extents.size() - 1));
  const std::int64_t classes = logits.size(-1), rows = logits.numel() / classes;
  check_defined("sample", "draws", draws);
  check(is_whole(draws) && draws.shape() == shape,
        "sample: draws must be i32 or i64 with the shape of logits {} without its last axis, got "
        "{} {}",
        logits.shape(), draws.dtype(), draws.shape());
  if (draws.device() == kCpu) {
    for (const std::int64_t draw : to(draws, DType::i64).to_vector<std::int64_t>()) {
      check(draw >= 0 && draw < std::int64_t{1} << kDrawBits,
            "sample: draws must be from 0 to 2^53 - 1, got {}", draw);
    }
  }
  SampleProblem problem;
  problem.logits = contiguous(to(reshape(logits, {rows, classes}), DType::f32));
  problem.draws = whole_numbers(reshape(draws, {rows}), logits.device());
  if (occurred.defined()) {
    check(is_whole(occurred) && occurred.rank() == logits.rank() && rows > 0 &&
              occurred.numel() == rows * occurred.size(-1),
          "sample: occurred must be i32 or i64 with the shape of logits {} but for its last axis, "
          "got {} {}",
          logits.shape(), occurred.dtype(), occurred.shape());
    if (options.repetition_penalty != 1 && occurred.numel() > 0) {
      problem.occurred = whole_numbers(reshape(occurred, {rows, -1}), logits.device());
    }
  }
  problem.rate = rate_of(options.temperature);
  problem.top_k = options.top_k;
  problem.top_p = options.top_p;
  problem.floor = options.min_p > 0 ? options.temperature * std::log(options.min_p)
                                    : -std::numeric_limits<double>::infinity();
  problem.penalty = static_cast<float>(options.repetition_penalty);
  problem.ids = Tensor::empty({rows}, {DType::i64, logits.device()});
  backend(logits.device()).sample(problem);
  return reshape(problem.ids, {shape.extents().begin(), shape.extents().end()});
}

}  // namespace qkv

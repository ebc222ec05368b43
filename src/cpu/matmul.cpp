// matmul, pack and linear: problems as products.
#include <algorithm>

#include "core/threads.h"
#include "cpu/gemm.h"
#include "cpu/int8_linear.h"
#include "cpu/kernels.h"
#include "qkv/threads.h"

namespace qkv::cpu {
namespace {

std::byte* raw(const Tensor& x, std::int64_t element = 0) {
  return static_cast<std::byte*>(x.raw()) + element * static_cast<std::int64_t>(size_of(x.dtype()));
}

// The last two axes of a tensor from `element` on, its batch (if it has one) as groups of rows.
Source source_of(const Tensor& x, std::int64_t element = 0) {
  return {.data = raw(x, element),
          .dtype = x.dtype(),
          .row = x.stride(-2),
          .step = x.stride(-1),
          .group = std::max<std::int64_t>(1, x.size(-2)),
          .group_stride = x.rank() == 3 ? x.stride(0) : 0};
}

Rows rows_of(const Tensor& x, std::int64_t element = 0) {
  return {raw(x, element), x.dtype(), x.rank() > 1 ? x.stride(-2) : x.size(-1), 1};
}

}  // namespace

void matmul(const MatmulProblem& problem) {
  if (problem.before.defined()) {
    MatmulProblem plain = problem;
    plain.y = problem.before;
    plain.before = {};
    plain.activation = Activation::none;
    matmul(plain);
    Tensor y = problem.y;
    return activate(problem.activation, problem.before, y);
  }
  const std::int64_t batch = problem.y.size(0), m = problem.y.size(1), n = problem.y.size(2);
  if (problem.y.numel() == 0) return;
  Product product{.engine = gemm_engine(problem.b.dtype()),
                  .a = source_of(problem.a),
                  .m = batch * m,
                  .n = n,
                  .k = problem.a.size(2),
                  .round = problem.b.dtype() == DType::bf16,
                  .b = source_of(problem.b),
                  .activation = problem.activation,
                  .y = rows_of(problem.y)};
  if (problem.bias.defined()) product.bias = rows_of(problem.bias);
  if (batch == 1 || problem.b.stride(0) == 0) return multiply(product);  // rows of one product

  product.m = m;
  auto one = [&](std::int64_t i) {
    Product part = product;
    part.a = source_of(problem.a, i * problem.a.stride(0));
    part.b = source_of(problem.b, i * problem.b.stride(0));
    part.y = rows_of(problem.y, i * m * n);
    multiply(part);
  };
  // A product for each thread, or all threads on each product: loops within loops are serial.
  if (batch >= num_threads()) return parallel_for(batch, one);
  for (std::int64_t i = 0; i < batch; ++i) one(i);
}

std::shared_ptr<const Packed> pack(const Tensor& weight) {
  auto packed = std::make_shared<CpuPacked>();
  const std::int64_t n = weight.size(0), k = weight.size(1);
  packed->outputs = n;
  packed->inputs = k;
  packed->dtype = packed->stored = weight.dtype();
  packed->device = weight.device();
  packed->engine = gemm_engine(weight.dtype());
  const GemmEngine& engine = packed->engine;
  packed->panel_stride = round_up(k, engine.depth_multiple) * engine.panel;
  const auto width = static_cast<std::int64_t>(size_of(packed->stored));
  const std::int64_t panels = (n + engine.panel - 1) / engine.panel;
  packed->bytes = Tensor::empty({panels * packed->panel_stride * width + 64}, {DType::u8});
  auto* data = static_cast<std::byte*>(packed->bytes.raw());

  Source columns = source_of(weight);  // [k, n]
  std::swap(columns.row, columns.step);
  columns.group = std::max<std::int64_t>(1, k);
  constexpr std::int64_t kPanelsPerTask = 4;
  parallel_for((panels + kPanelsPerTask - 1) / kPanelsPerTask, [&](std::int64_t task) {
    const std::int64_t panel = task * kPanelsPerTask, column = panel * engine.panel;
    const std::int64_t count = std::min(kPanelsPerTask * engine.panel, n - column);
    engine.pack_right(
        engine, columns, {0, k, column, count},
        {data + panel * packed->panel_stride * width, packed->stored, packed->panel_stride});
  });
  return packed;
}

void linear(const LinearProblem& problem) {
  if (problem.weight->dtype == DType::i8) return linear_int8(problem);
  const auto& packed = static_cast<const CpuPacked&>(*problem.weight);
  Product product{.engine = packed.engine,
                  .a = source_of(problem.x),
                  .m = problem.x.size(0),
                  .n = packed.outputs,
                  .k = packed.inputs,
                  .round = packed.dtype == DType::bf16,
                  .packed = &packed,
                  .activation = problem.activation,
                  .y = rows_of(problem.y)};
  if (problem.bias.defined()) product.bias = rows_of(problem.bias);
  multiply(product);
}

}  // namespace qkv::cpu

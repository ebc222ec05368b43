#include "three_step.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/threads.h"
#include "plain_softmax.h"
#include "qkv/threads.h"

namespace qkv::cli {
namespace {

// c = alpha * a b (+ c), row-major and without gaps; m x n from products of length k.
struct Gemm {
  CBLAS_TRANSPOSE ta = CblasNoTrans, tb = CblasNoTrans;
  std::int64_t m, n, k;
  float alpha = 1, beta = 0;

  void operator()(const float* a, const float* b, float* c) const {
    const auto width = [](std::int64_t x) { return static_cast<blasint>(x); };
    cblas_sgemm(CblasRowMajor, ta, tb, width(m), width(n), width(k), alpha, a,
                width(ta == CblasNoTrans ? k : m), b, width(tb == CblasNoTrans ? n : k), beta, c,
                width(n));
  }
};

}  // namespace

ThreeStep::ThreeStep(const BenchCase& bench, Tensor q, Tensor k, Tensor v, Tensor dout)
    : bench_(bench),
      q_(std::move(q)),
      k_(std::move(k)),
      v_(std::move(v)),
      dout_(std::move(dout)),
      out_(Tensor::empty({bench.batch, bench.heads, bench.queries, bench.value_size})) {
  // One query per head: the heads that share keys are the rows of one product.
  rows_ = bench.queries == 1 ? bench.group() : bench.queries;
  blocks_per_key_head_ = bench.queries == 1 ? 1 : bench.group();
  // Several heads at once, each product on one thread, is faster than one head after the other on
  // all threads, and is possible when there are enough heads.
  heads_in_parallel_ = bench.batch * bench.key_heads >= num_threads();
  const int slots = heads_in_parallel_ ? num_threads() : 1;
  for (int i = 0; i < slots; ++i) weights_.push_back(Tensor::empty({rows_, bench.keys}));
  if (!dout_.defined()) return;
  for (int i = 0; i < slots; ++i) dweights_.push_back(Tensor::empty({rows_, bench.keys}));
  dq_ = Tensor::empty(q_.shape());
  dk_ = Tensor::empty(k_.shape());
  dv_ = Tensor::empty(v_.shape());
}

// Calls work(block, slot); blocks of one key head follow each other on one thread.
template <class Work>
void ThreeStep::for_each_block(Work work) {
  const std::int64_t key_heads = bench_.batch * bench_.key_heads;
  const auto run = [&](std::int64_t key_head, int slot) {
    for (std::int64_t i = 0; i < blocks_per_key_head_; ++i) {
      const std::int64_t row = (key_head * blocks_per_key_head_ + i) * rows_;
      work(Block{q_.data<float>() + row * bench_.head_size,
                 k_.data<float>() + key_head * bench_.keys * bench_.head_size,
                 v_.data<float>() + key_head * bench_.keys * bench_.value_size, row, key_head,
                 i == 0},
           slot);
    }
  };
  if (!heads_in_parallel_) {
    openblas_set_num_threads(num_threads());
    for (std::int64_t key_head = 0; key_head < key_heads; ++key_head) run(key_head, 0);
    return;
  }
  openblas_set_num_threads(1);
  const auto slots = static_cast<std::int64_t>(weights_.size());
  parallel_for(slots, [&](std::int64_t slot) {
    for (std::int64_t key_head = slot; key_head < key_heads; key_head += slots) {
      run(key_head, static_cast<int>(slot));
    }
  });
}

void ThreeStep::compute_weights(const Block& block, Tensor& weights) const {
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(bench_.head_size)));
  float* scores = weights.data<float>();
  Gemm{.tb = CblasTrans, .m = rows_, .n = bench_.keys, .k = bench_.head_size, .alpha = scale}(
      block.q, block.k, scores);
  parallel_for(rows_, [&](std::int64_t i) {
    const std::int64_t query = bench_.queries == 1 ? 0 : i;
    const std::int64_t first = bench_.first_key(query), last = bench_.last_key(query);
    float* row = scores + i * bench_.keys;
    std::fill(row, row + first, 0.0f);
    if (last > first) plain_softmax(row + first, last - first);
    std::fill(row + last, row + bench_.keys, 0.0f);
  });
}

void ThreeStep::forward() {
  for_each_block([this](const Block& block, int slot) {
    Tensor& weights = weights_[static_cast<std::size_t>(slot)];
    compute_weights(block, weights);
    Gemm{.m = rows_, .n = bench_.value_size, .k = bench_.keys}(
        weights.data<float>(), block.v, out_.data<float>() + block.first_row * bench_.value_size);
  });
}

void ThreeStep::backward() {
  for_each_block([this](const Block& block, int slot) { backward_of(block, slot); });
}

void ThreeStep::backward_of(const Block& block, int slot) {
  Tensor& weights = weights_[static_cast<std::size_t>(slot)];
  compute_weights(block, weights);
  const float* p = weights.data<float>();
  float* ds = dweights_[static_cast<std::size_t>(slot)].data<float>();
  const std::int64_t keys = bench_.keys, d = bench_.head_size, dv = bench_.value_size;
  const float* dout = dout_.data<float>() + block.first_row * dv;
  const float* out = out_.data<float>() + block.first_row * dv;
  const float sum = block.first_of_group ? 0.0f : 1.0f;  // dk and dv add up over a group
  Gemm{.ta = CblasTrans, .m = keys, .n = dv, .k = rows_, .beta = sum}(
      p, dout, dv_.data<float>() + block.key_head * keys * dv);
  Gemm{.tb = CblasTrans, .m = rows_, .n = keys, .k = dv}(dout, block.v, ds);
  parallel_for(rows_, [&](std::int64_t i) {
    float r = 0;
    for (std::int64_t j = i * dv; j < (i + 1) * dv; ++j) r += dout[j] * out[j];
    for (std::int64_t j = i * keys; j < (i + 1) * keys; ++j) ds[j] = p[j] * (ds[j] - r);
  });
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  Gemm{.m = rows_, .n = d, .k = keys, .alpha = scale}(ds, block.k,
                                                      dq_.data<float>() + block.first_row * d);
  Gemm{.ta = CblasTrans, .m = keys, .n = d, .k = rows_, .alpha = scale, .beta = sum}(
      ds, block.q, dk_.data<float>() + block.key_head * keys * d);
}

}  // namespace qkv::cli

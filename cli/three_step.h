// The plain computation that fused attention is compared with: a matrix product (OpenBLAS), the
// mask and a softmax over the whole Sq x Sk matrix of scores, another product. f32.
#pragma once

#include <vector>

#include "bench_case.h"

namespace qkv::cli {

class ThreeStep {
 public:
  // q, k, v and dout are f32 and contiguous; dout may be undefined when there is no backward.
  // Everything is allocated here, so that runs only compute.
  ThreeStep(const BenchCase& bench, Tensor q, Tensor k, Tensor v, Tensor dout);

  void forward();
  // Recomputes the weights, as the fused backward does; needs a forward before it.
  void backward();

  const Tensor& out() const { return out_; }
  const Tensor& dq() const { return dq_; }
  const Tensor& dk() const { return dk_; }
  const Tensor& dv() const { return dv_; }

 private:
  // One query head (or, for one query, all that share a key head) and its matrices.
  struct Block {
    const float *q, *k, *v;
    std::int64_t first_row;  // among all rows of q
    std::int64_t key_head;   // among all batches
    bool first_of_group;
  };
  template <class Work>
  void for_each_block(Work work);
  void compute_weights(const Block& block, Tensor& weights) const;
  void backward_of(const Block& block, int slot);

  BenchCase bench_;
  Tensor q_, k_, v_, dout_, out_, dq_, dk_, dv_;
  std::int64_t rows_;  // of a block
  std::int64_t blocks_per_key_head_;
  bool heads_in_parallel_;
  std::vector<Tensor> weights_, dweights_;  // one per block under way
};

}  // namespace qkv::cli

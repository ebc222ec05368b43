// The kernels of the CPU backend, one file each.
#pragma once

#include <memory>
#include <span>

#include "core/attention_problem.h"
#include "core/op_problems.h"

namespace qkv::cpu {

void copy(const Tensor& from, Tensor& to);
void store_rows(const Tensor& x, const Tensor& at, Tensor& data);
void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y);
void scale(const Tensor& x, double factor, Tensor& y);
void sum(const Tensor& x, Tensor& y);
void head_figures(std::span<const HeadFigures> items, Tensor& y);
void activate(Activation f, const Tensor& x, Tensor& y);
void activate_backward(Activation f, const Tensor& x, const Tensor& dy, Tensor& dx);
void gated(Activation f, const Tensor& gate, const Tensor& up, Tensor& y);
void gated_backward(Activation f, const Tensor& gate, const Tensor& up, const Tensor& dy,
                    Tensor& dgate, Tensor& dup);
void dropout(const Tensor& x, double p, std::uint64_t seed, Tensor& y);
void matmul(const MatmulProblem& problem);
std::shared_ptr<const Packed> pack(const Tensor& weight);
void linear(const LinearProblem& problem);
void quantize(const Tensor& x, const Rounding& how, Tensor& values, Tensor& scale);
void dequantize(const Tensor& values, const Tensor& scale, const Rounding& how, Tensor& y);
void norm(const NormProblem& problem);
void norm_backward(const NormBackward& problem);
void rotary(const RotaryProblem& problem);
void embedding(const Tensor& ids, const Tensor& table, Tensor& y);
void embedding_backward(const Tensor& ids, const Tensor& dy, std::int64_t padding, Tensor& dtable);
void cross_entropy(const CrossEntropyProblem& problem);
void cross_entropy_backward(const CrossEntropyBackward& problem);
void sample(const SampleProblem& problem);
void optimize(const OptimizerProblem& problem);
void softmax(const Tensor& x, Tensor& y);
void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx);
AttentionKernels attention_kernels(const AttentionProblem& problem);
bool reads_pages(const AttentionProblem& problem);
void attention_forward(const AttentionProblem& problem, const AttentionResults& results);
void attention_backward(const AttentionProblem& problem, const AttentionBackward& tensors);
void attention_weights(const AttentionProblem& problem, const AttentionWeights& wanted);

}  // namespace qkv::cpu

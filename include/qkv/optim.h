// Optimisers: what changes parameters after a backward.
//
//   qkv::AdamW adam(parameters, {.lr = 3e-4});
//   adam.step(tape.backward(loss));
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/autograd.h"
#include "qkv/tensor.h"

namespace qkv {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // decoupled: a parameter loses lr * weight_decay of itself each step
  double clip_norm = 0;  // > 0: gradients are scaled so that all together have at most this norm
};

// What a parameter has besides itself; all f32, of its shape. Tensors to save and to restore: their
// bytes are the state.
struct AdamWState {
  Tensor m, v;             // running means of the gradient and of its square
  Tensor master;           // the parameter before rounding, where it is bf16 or f16; else undefined
  std::int64_t steps = 0;  // that had a gradient for it
};

// Adam with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW. Parameters are
// changed in place: they are the caller's tensors, contiguous and floating point.
class AdamW {
 public:
  // Parameters that get the same options; those to be left without weight decay (biases, gains) go
  // into an AdamW of their own, or into `undecayed`.
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {},
                 std::vector<Tensor> undecayed = {});

  // One step. A parameter without a gradient stays as it is, and so does its state. Returns the
  // norm of all gradients together before clipping.
  double step(const Gradients& gradients);

  // For schedules: what the next step uses.
  AdamWOptions options;

  // Decayed parameters first, then the others; their states in the same order.
  const std::vector<Tensor>& parameters() const { return parameters_; }
  const std::vector<AdamWState>& state() const { return state_; }
  // Takes up a run again. A state that does not fit its parameter is an Error.
  void set_state(std::vector<AdamWState> state);

 private:
  std::vector<Tensor> parameters_;
  std::size_t decayed_;
  std::vector<AdamWState> state_;
};

}  // namespace qkv

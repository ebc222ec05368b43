// Optimisers: what changes parameters after a backward.
//
//   qkv::AdamW adam(parameters, {.lr = 3e-4});
//   adam.step(tape.backward(loss));
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "qkv/autograd.h"
#include "qkv/optimizer_rule.h"
#include "qkv/tensor.h"

namespace qkv {

class Reading;

struct OptimizerOptions {
  OptimizerRule rule = OptimizerRule::adamw;
  double lr = 1e-3;
  double beta1 = 0.9;          // of the running mean of gradients; sgd: the momentum, 0 = none
  double beta2 = 0.999;        // adamw: of their squares; lion: of the mean that is kept (use 0.99)
  double eps = 1e-8;           // adamw alone
  double weight_decay = 0.01;  // decoupled: a parameter loses lr * weight_decay of itself each step
  double clip_norm = 0;  // > 0: gradients are scaled so that all together have at most this norm
  double ema = 0;        // > 0: a running mean of the parameters, which keeps this share each step
};
using AdamWOptions = OptimizerOptions;

// What a parameter has besides itself, on its device; f32 of its shape but for the count. Tensors
// to save and to restore: their bytes are the state. A step changes them in place.
struct OptimizerState {
  Tensor m;       // the running mean of gradients; undefined for sgd without momentum
  Tensor v;       // adamw: the running mean of their squares; else undefined
  Tensor master;  // the parameter before rounding, where it is bf16 or f16; else undefined
  Tensor ema;     // the running mean of the parameter, from its first value on; or undefined
  Tensor steps;   // i64 []: the steps that had a gradient for it
};

// Parameters are changed in place: they are the caller's tensors, contiguous and floating point,
// all on one device.
class Optimizer {
 public:
  // Parameters that get the same options; those to be left without weight decay (biases, gains) go
  // into `undecayed`.
  explicit Optimizer(std::vector<Tensor> parameters, const OptimizerOptions& options = {},
                     std::vector<Tensor> undecayed = {});

  // One step. A parameter without a gradient stays as it is, and so does its state. Returns the
  // norm of all gradients together before clipping: f32 [], on the device of the parameters, for
  // which nobody has waited. Where it is not finite nothing was changed.
  Tensor step(const Gradients& gradients);
  // That norm of the last step on the CPU. Waits for it, but not for the parameters to change.
  float norm() const;

  // For schedules: what the next step uses.
  OptimizerOptions options;

  // Decayed parameters first, then the others; their states in the same order.
  const std::vector<Tensor>& parameters() const { return parameters_; }
  const std::vector<OptimizerState>& state() const { return state_; }
  // Takes up a run again. A state that does not fit its parameter is an Error.
  void set_state(std::vector<OptimizerState> state);

 private:
  std::vector<Tensor> parameters_;
  std::size_t decayed_;
  std::vector<OptimizerState> state_;
  std::shared_ptr<Reading> norm_;
};

// The rule that options have by themselves.
using AdamW = Optimizer;

}  // namespace qkv

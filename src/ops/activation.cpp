// activate (relu, gelu, silu, ...), gated variants, dropout.
#include "qkv/activation.h"

#include <array>
#include <utility>

#include "core/backend.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

// The first name of each activation is the one we write.
constexpr std::array<std::pair<const char*, Activation>, 13> kNames{{
    {"none", Activation::none},
    {"relu", Activation::relu},
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"silu", Activation::silu},
    {"tanh", Activation::tanh},
    {"linear", Activation::none},
    {"gelu_python", Activation::gelu},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_tanh", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_accurate", Activation::gelu_tanh},
    {"swish", Activation::silu},
}};

}  // namespace

std::string to_string(Activation activation) {
  for (const auto& [name, value] : kNames) {
    if (value == activation) return name;
  }
  return "?";
}

Activation activation_from_string(const std::string& name) {
  std::string all;
  for (const auto& [known, value] : kNames) {
    if (name == known) return value;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  fail("activation '{}' is not known; there are {}", name, all);
}

Tensor activate(const Tensor& x, Activation activation) {
  check_floating("activate", "x", x);
  if (activation == Activation::none) return x;
  const Tensor from = contiguous(x);
  Tensor y = Tensor::empty(x.shape(), {x.dtype(), x.device()});
  backend(x.device()).activate(activation, from, y);
  return Tape::record("activate", {from}, y, [from, activation](const Tensor& dy) {
    Tensor dx = Tensor::empty(from.shape(), {from.dtype(), from.device()});
    backend(from.device())
        .activate_backward(activation, from, contiguous(to(dy, from.dtype())), dx);
    return std::vector{dx};
  });
}

Tensor relu(const Tensor& x) { return activate(x, Activation::relu); }
Tensor gelu(const Tensor& x) { return activate(x, Activation::gelu); }
Tensor gelu_tanh(const Tensor& x) { return activate(x, Activation::gelu_tanh); }
Tensor silu(const Tensor& x) { return activate(x, Activation::silu); }
Tensor tanh(const Tensor& x) { return activate(x, Activation::tanh); }

Tensor gated(const Tensor& gate, const Tensor& up, Activation activation) {
  check_floating("gated", "gate", gate);
  check_defined("gated", "up", up);
  check(gate.shape() == up.shape() && gate.dtype() == up.dtype() && gate.device() == up.device(),
        "gated: gate {} {} and up {} {} must agree", gate.dtype(), gate.shape(), up.dtype(),
        up.shape());
  Tensor y = Tensor::empty(gate.shape(), {gate.dtype(), gate.device()});
  backend(gate.device()).gated(activation, gate, up, y);
  return Tape::record("gated", {gate, up}, y, [gate, up, activation](const Tensor& dy) {
    Tensor dgate = Tensor::empty(gate.shape(), {gate.dtype(), gate.device()});
    Tensor dup = Tensor::empty(up.shape(), {up.dtype(), up.device()});
    backend(gate.device()).gated_backward(activation, gate, up, to(dy, gate.dtype()), dgate, dup);
    return std::vector{dgate, dup};
  });
}

Tensor dropout(const Tensor& x, double p, std::uint64_t seed) {
  check_floating("dropout", "x", x);
  check(p >= 0 && p < 1, "dropout: p must be in [0, 1), got {}", p);
  if (p == 0) return x;
  const Tensor from = contiguous(x);
  Tensor y = Tensor::empty(x.shape(), {x.dtype(), x.device()});
  backend(x.device()).dropout(from, p, seed, y);
  return Tape::record("dropout", {from}, y, [p, seed](const Tensor& dy) {
    return std::vector{dropout(contiguous(dy), p, seed)};
  });
}

}  // namespace qkv

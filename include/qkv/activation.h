// The functions that stand between two linear maps.
#pragma once

#include <cstdint>
#include <string>

namespace qkv {

enum class Activation : std::uint8_t {
  none,
  relu,
  gelu,       // x * Phi(x), by erf
  gelu_tanh,  // the approximation by tanh that GPT-2 and Gemma use
  silu,       // x * sigmoid(x)
  tanh,
};

std::string to_string(Activation activation);
// The names of Hugging Face configs ("gelu", "gelu_new", "silu", "swish", ...); Error on others.
Activation activation_from_string(const std::string& name);

}  // namespace qkv

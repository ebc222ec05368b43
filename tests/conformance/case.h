// One ONNX operator case: a .safetensors file with `op`, `opset` and `attributes` (JSON) as
// metadata and tensors named in.* and out.* after the operator's slots.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "qkv/checkpoint.h"

namespace conformance {

class Case {
 public:
  // Throws qkv::Error when the file is not such a case.
  explicit Case(const std::string& path);

  const std::string& op() const { return op_; }
  int opset() const { return opset_; }

  // The attribute, or nothing when the case leaves it to its default.
  std::optional<double> number(const std::string& name) const;
  std::int64_t integer(const std::string& name, std::int64_t otherwise) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  // The input, or an undefined tensor.
  qkv::Tensor input(const std::string& slot) const;
  bool has_output(const std::string& slot) const;
  std::vector<std::string> outputs() const;
  qkv::Tensor output(const std::string& slot) const;

  // Throws qkv::Error when the case has an attribute or input outside these lists: something it
  // asks for would be ignored.
  void require_known(const std::vector<std::string>& attributes,
                     const std::vector<std::string>& inputs) const;

 private:
  qkv::Checkpoint file_;
  std::string op_;
  int opset_ = 0;
  std::map<std::string, std::optional<double>> attributes_;  // no value: not a number
  std::map<std::string, std::string> texts_;                 // those that are text
};

// What the operator gave, by slot name.
using Outputs = std::map<std::string, qkv::Tensor>;

Outputs run_attention(const Case& c);
Outputs run_gelu(const Case& c);
Outputs run_layer_norm(const Case& c);
Outputs run_rms_norm(const Case& c);
Outputs run_rotary(const Case& c);
Outputs run_softmax(const Case& c);

}  // namespace conformance

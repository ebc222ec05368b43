// Tensors by name in a .safetensors file, mapped, not copied.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "qkv/tensor.h"

namespace qkv {

class Checkpoint {
 public:
  // Throws Error when the file cannot be read or its header does not describe its bytes.
  static Checkpoint open(const std::string& path);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  // A view of the mapped file, which stays mapped while the tensor lives: do not write to it. A
  // copy where the file does not align the tensor to its dtype. Throws Error when there is no such
  // tensor or its dtype is not one of DType.
  Tensor operator[](const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct File;
  std::shared_ptr<const File> file_;
};

}  // namespace qkv

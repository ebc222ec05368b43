// Tensors by name in .safetensors files, mapped, not copied; and the writing of such files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "qkv/tensor.h"

namespace qkv {

// What a file says about a tensor; knowing it touches none of the tensor's bytes.
struct TensorInfo {
  std::string stored_dtype;    // as the file writes it: "F32", but also "F64" or "F8_E4M3"
  std::optional<DType> dtype;  // absent when DType has no such type
  Shape shape;
  std::uint64_t bytes = 0;
};

// Files are mapped, so they must stay as long as they are while any tensor of them lives. Renaming
// a new file over one is safe (save_checkpoint does it so): the tensors keep the old bytes. A file
// that is shortened in place is not: touching what is gone ends the process with SIGBUS, which no
// library can turn into an Error (the `qkv` command says which file it was).
//
// Any number of threads may use one Checkpoint, its copies and its tensors.
class Checkpoint {
 public:
  // A .safetensors file; or an index (*.json) of the files a large model is cut into; or a folder
  // with a model.safetensors or else a model.safetensors.index.json. Throws Error when a file
  // cannot be read, a header does not describe its bytes, or an index does not describe its files:
  // these lie beside it, each has the tensors listed for it, and none has another's. What no index
  // lists is passed over: the index says what the model is, and others read such files, too.
  static Checkpoint open(const std::string& path);

  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const;
  // Throws Error when there is no such tensor.
  TensorInfo info(const std::string& name) const;
  // A view of the mapped file, which stays mapped while the tensor lives: do not write to it. A
  // copy where the file does not align the tensor to its dtype. Throws Error when there is no such
  // tensor or its dtype is not one of DType.
  Tensor operator[](const std::string& name) const;
  // Of several files: of all of them, the first that has a key decides.
  const std::map<std::string, std::string>& metadata() const;
  // What is mapped: one .safetensors file, or those of the index.
  std::vector<std::string> files() const;

 private:
  struct Files;
  std::shared_ptr<const Files> files_;
};

// Says that the bytes of `tensor`, which came from a checkpoint, are not needed soon, as after a
// weight was packed into another layout. The pages that hold nothing else leave this process; a
// later touch reads them from the file again, so this costs time at worst and never changes a
// value. Does nothing to tensors from elsewhere.
void drop_pages(const Tensor& tensor);

// Writes a .safetensors file: CPU tensors of any strides, in an order that aligns them. The file
// appears whole or not at all: on an Error, which names the path and the reason, what was there
// before is as it was. It may be the very file the tensors are mapped from.
void save_checkpoint(const std::string& path,
                     const std::vector<std::pair<std::string, Tensor>>& tensors,
                     const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace qkv

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <span>

#include "core/backend.h"
#include "core/check.h"
#include "io/file.h"
#include "io/safetensors_dtype.h"
#include "io/safetensors_header.h"
#include "io/shown.h"
#include "qkv/checkpoint.h"

namespace qkv {
namespace {

using Named = std::pair<std::string, Tensor>;

std::uint64_t bytes_of(const Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.numel()) * size_of(tensor.dtype());
}

// Wide elements first: behind a header of whole 8 bytes every tensor is then aligned. It is
// the same order for the same tensors, however they were listed.
std::vector<const Named*> in_file_order(const std::vector<Named>& tensors) {
  std::vector<const Named*> order;
  order.reserve(tensors.size());
  for (const Named& named : tensors) order.push_back(&named);
  std::sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    const std::size_t wide = size_of(a->second.dtype()), other = size_of(b->second.dtype());
    return wide != other ? wide > other : a->first < b->first;
  });
  return order;
}

void check_tensors(const std::string& path, const std::vector<Named>& tensors) {
  std::vector<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    check(tensor.defined(), "cannot write '{}': tensor '{}' is undefined", path, shown_name(name));
    check(tensor.device() == kCpu, "cannot write '{}': tensor '{}' is on {}, copy it to the CPU",
          path, shown_name(name), tensor.device());
    check(name != "__metadata__", "cannot write '{}': no tensor can be called __metadata__", path);
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  check(twice == names.end(), "cannot write '{}': two tensors are called '{}'", path,
        twice == names.end() ? "" : shown_name(*twice));
}

std::string header_text(const std::string& path, const std::vector<const Named*>& order,
                        const std::map<std::string, std::string>& metadata) try {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // ordered_json looks for a key from the front each time: append instead, the names are distinct.
  auto& entries = header.get_ref<nlohmann::ordered_json::object_t&>();
  std::uint64_t begin = 0;
  for (const Named* named : order) {
    const auto& [name, tensor] = *named;
    const std::uint64_t end = begin + bytes_of(tensor);
    const auto extents = tensor.shape().extents();
    nlohmann::ordered_json entry{{"dtype", safetensors_name(tensor.dtype())},
                                 {"shape", std::vector(extents.begin(), extents.end())},
                                 {"data_offsets", {begin, end}}};
    entries.push_back({name, std::move(entry)});
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kLongestHeader, "cannot write '{}': a header of {} bytes, at most {}", path,
        text.size(), kLongestHeader);
  return text;
} catch (const nlohmann::json::exception&) {
  fail("cannot write '{}': a name or a metadata text is not UTF-8", path);
}

void write_tensor(const Tensor& tensor, const FileSink& sink) {
  if (tensor.numel() == 0) return;
  Tensor contiguous = tensor;
  if (!tensor.is_contiguous()) {
    contiguous = Tensor::empty(tensor.shape(), {tensor.dtype()});
    backend(kCpu).copy(tensor, contiguous);
  }
  sink({static_cast<const std::byte*>(contiguous.raw()), bytes_of(contiguous)});
}

}  // namespace

void save_checkpoint(const std::string& path, const std::vector<Named>& tensors,
                     const std::map<std::string, std::string>& metadata) try {
  check_tensors(path, tensors);
  const std::vector<const Named*> order = in_file_order(tensors);
  const std::string header = header_text(path, order, metadata);
  const std::uint64_t length = header.size();
  write_file_atomically(path, [&](const FileSink& sink) {
    sink(std::as_bytes(std::span(&length, 1)));
    sink(std::as_bytes(std::span(header)));
    for (const Named* named : order) write_tensor(named->second, sink);
  });
} catch (const std::bad_alloc&) {
  fail<OutOfMemory>("cannot write '{}': out of memory", path);
}

}  // namespace qkv

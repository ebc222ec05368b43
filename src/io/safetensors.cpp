// Checkpoint: a .safetensors file is 8 bytes with the length of a JSON header (little-endian), the
// header, and the bytes of all tensors. No number in it is trusted before it has been checked.
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "core/check.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"
#include "qkv/checkpoint.h"

namespace qkv {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are mapped, not converted");

constexpr std::uint64_t kPrefix = 8;                   // bytes of the header's length
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the limit of the format itself

}  // namespace

struct Checkpoint::File {
  std::string path;
  std::shared_ptr<const MappedFile> mapped;
  std::uint64_t data_begin = 0;
  SafetensorsHeader header;

  static const File& of(const Checkpoint& checkpoint) {
    check(checkpoint.file_ != nullptr, "checkpoint: no file; use Checkpoint::open");
    return *checkpoint.file_;
  }
};

Checkpoint Checkpoint::open(const std::string& path) try {
  auto file = std::make_shared<File>();
  file->path = path;
  file->mapped = MappedFile::open(path);
  const std::byte* bytes = file->mapped->data();
  const std::uint64_t size = file->mapped->size();
  check(size >= kPrefix, "'{}': {} bytes are too few for a safetensors file", path, size);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes, kPrefix);
  check(length <= kLongestHeader && length <= size - kPrefix,
        "'{}': a header of {} bytes does not fit in a file of {} (at most {} are allowed)", path,
        length, size, kLongestHeader);
  file->data_begin = kPrefix + length;
  const std::string_view json(reinterpret_cast<const char*>(bytes) + kPrefix, length);
  file->header = parse_safetensors_header(json, size - file->data_begin, path);
  Checkpoint checkpoint;
  checkpoint.file_ = std::move(file);
  return checkpoint;
} catch (const std::bad_alloc&) {
  fail("'{}': out of memory while reading the header", path);
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : File::of(*this).header.tensors) names.push_back(name);
  return names;
}

bool Checkpoint::contains(const std::string& name) const {
  return File::of(*this).header.tensors.contains(name);
}

const std::map<std::string, std::string>& Checkpoint::metadata() const {
  return File::of(*this).header.metadata;
}

Tensor Checkpoint::operator[](const std::string& name) const {
  const File& file = File::of(*this);
  const auto found = file.header.tensors.find(name);
  check(found != file.header.tensors.end(), "'{}': no tensor '{}'", file.path, shown_name(name));
  const SafetensorsEntry& entry = found->second;
  DType dtype{};
  check(safetensors_dtype(entry.dtype, dtype),
        "'{}': tensor '{}' is {}, expected F32, BF16, F16, I32, I64, U8 or BOOL", file.path,
        shown_name(name), shown_name(entry.dtype));

  const std::byte* bytes = file.mapped->data() + file.data_begin + entry.begin;
  const std::size_t count = entry.end - entry.begin;
  if (dtype == DType::boolean) {  // a C++ bool with another bit pattern is undefined behaviour
    check(std::all_of(bytes, bytes + count, [](std::byte b) { return b <= std::byte{1}; }),
          "'{}': tensor '{}' is BOOL and holds bytes other than 0 and 1", file.path,
          shown_name(name));
  }
  if (reinterpret_cast<std::uintptr_t>(bytes) % size_of(dtype) != 0) {
    // The format does not promise alignment, and C++ may not read an unaligned float: a copy.
    Tensor copy = Tensor::empty(entry.shape, {dtype});
    if (count > 0) std::memcpy(copy.raw(), bytes, count);
    return copy;
  }
  // The const_cast only gets the pointer into a Tensor, which has no read-only kind. Nothing in
  // the library writes to an operator's input; a caller who writes here gets SIGSEGV, not a
  // changed file, because the pages are mapped without write permission.
  return Tensor::wrap(const_cast<std::byte*>(bytes), entry.shape, dtype, file.mapped);
}

}  // namespace qkv

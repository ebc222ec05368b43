// Checkpoint: one .safetensors file or several behind an index. A file is 8 bytes with the length
// of a JSON header (little-endian), the header, and the bytes of all tensors. No number in it is
// trusted before it has been checked.
#include "qkv/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>

#include "core/check.h"
#include "io/mapped_file.h"
#include "io/safetensors_dtype.h"
#include "io/safetensors_header.h"
#include "io/shard_index.h"
#include "io/shown.h"

namespace qkv {
namespace {

struct SafetensorsFile {
  std::string path;
  std::shared_ptr<const MappedFile> mapped;
  SafetensorsHeader header;
};

SafetensorsFile open_file(const std::string& path) {
  SafetensorsFile file{path, MappedFile::open(path), {}};
  file.header = read_safetensors_header({file.mapped->data(), file.mapped->size()}, path);
  return file;
}

// Weights in another format, by their usual names, or "".
std::string other_weights(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                           "flax_model.msgpack", "consolidated.00.pth"}) {
    if (std::filesystem::exists(folder / name, ignored)) return name;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string end = entry.path().extension().string();
    for (const char* other : {".safetensors", ".gguf", ".bin", ".pt", ".pth"}) {
      if (end == other) return entry.path().filename().string();
    }
  }
  return "";
}

// The file or index that a folder means.
std::string resolve(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // what cannot be looked at cannot be opened, and is reported then
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    const fs::path file = fs::path(path) / name;
    if (fs::exists(fs::symlink_status(file, ignored))) return file.string();
  }
  const std::string other = other_weights(path);
  fail("'{}': the folder has no model.safetensors and no model.safetensors.index.json{}", path,
       other.empty() ? "" : fmt::format(" (it has {})", shown_name(other)));
}

struct Place {
  std::size_t file = 0;
  const SafetensorsEntry* entry = nullptr;
};

}  // namespace

struct Checkpoint::Files {
  std::string path;  // what was opened, for messages
  std::vector<SafetensorsFile> files;
  std::map<std::string, Place> places;
  std::map<std::string, std::string> metadata;

  static const Files& of(const Checkpoint& checkpoint) {
    check(checkpoint.files_ != nullptr, "checkpoint: no file; use Checkpoint::open");
    return *checkpoint.files_;
  }

  const Place& at(const std::string& name) const {
    const auto found = places.find(name);
    check(found != places.end(), "'{}': no tensor '{}'", path, shown_name(name));
    return found->second;
  }

  void open_single() {
    files.push_back(open_file(path));
    for (const auto& [name, entry] : files[0].header.tensors) places[name] = {0, &entry};
    metadata = files[0].header.metadata;
  }

  void open_index() {
    const auto listed = read_shard_index(path);
    std::map<std::string, std::size_t> numbers;  // of the files, in the order of their names
    for (const auto& [name, file] : listed) numbers[file] = 0;
    files.reserve(numbers.size());
    for (auto& [file, number] : numbers) {
      number = files.size();
      files.push_back(open_file((std::filesystem::path(path).parent_path() / file).string()));
      metadata.merge(std::map(files.back().header.metadata));
    }
    for (const auto& [name, file] : listed) {
      const std::size_t number = numbers.at(file);
      const auto& tensors = files[number].header.tensors;
      const auto found = tensors.find(name);
      if (found == tensors.end()) {
        fail("'{}': tensor '{}' is not in '{}', where the index has it", path, shown_name(name),
             shown_name(file));
      }
      places[name] = {number, &found->second};
    }
    refuse_second_copies();
  }

  // Two files with one name leave open which is meant, whatever the index says: readers that load
  // file by file take the last.
  void refuse_second_copies() const {
    for (std::size_t number = 0; number < files.size(); ++number) {
      for (const auto& [name, entry] : files[number].header.tensors) {
        const auto place = places.find(name);
        if (place == places.end() || place->second.file == number) continue;
        fail("'{}': tensor '{}' is in two files, '{}' and '{}'", path, shown_name(name),
             files[place->second.file].path, files[number].path);
      }
    }
  }
};

Checkpoint Checkpoint::open(const std::string& path) try {
  auto files = std::make_shared<Files>();
  files->path = resolve(path);
  files->path.ends_with(".json") ? files->open_index() : files->open_single();
  Checkpoint checkpoint;
  checkpoint.files_ = std::move(files);
  return checkpoint;
} catch (const std::bad_alloc&) {
  fail<OutOfMemory>("'{}': out of memory while reading the header", path);
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : Files::of(*this).places) names.push_back(name);
  return names;
}

bool Checkpoint::contains(const std::string& name) const {
  return Files::of(*this).places.contains(name);
}

const std::map<std::string, std::string>& Checkpoint::metadata() const {
  return Files::of(*this).metadata;
}

std::vector<std::string> Checkpoint::files() const {
  std::vector<std::string> paths;
  for (const SafetensorsFile& file : Files::of(*this).files) paths.push_back(file.path);
  return paths;
}

TensorInfo Checkpoint::info(const std::string& name) const {
  const SafetensorsEntry& entry = *Files::of(*this).at(name).entry;
  return {entry.dtype, safetensors_dtype(entry.dtype), entry.shape, entry.end - entry.begin};
}

Tensor Checkpoint::operator[](const std::string& name) const {
  const Place& place = Files::of(*this).at(name);
  const SafetensorsFile& file = Files::of(*this).files[place.file];
  const SafetensorsEntry& entry = *place.entry;
  const auto dtype = safetensors_dtype(entry.dtype);
  check(dtype.has_value(), "'{}': tensor '{}' is {}, expected F32, BF16, F16, I32, I64, U8 or BOOL",
        file.path, shown_name(name), entry.dtype);

  const std::byte* bytes = file.mapped->data() + file.header.data_begin + entry.begin;
  const std::size_t count = entry.end - entry.begin;
  if (dtype == DType::boolean) {  // a C++ bool with another bit pattern is undefined behaviour
    check(std::all_of(bytes, bytes + count, [](std::byte b) { return b <= std::byte{1}; }),
          "'{}': tensor '{}' is BOOL and holds bytes other than 0 and 1", file.path,
          shown_name(name));
  }
  if (reinterpret_cast<std::uintptr_t>(bytes) % size_of(*dtype) != 0) {
    // The format does not promise alignment, and C++ may not read an unaligned float: a copy.
    Tensor copy = Tensor::empty(entry.shape, {*dtype});
    if (count > 0) std::memcpy(copy.raw(), bytes, count);
    return copy;
  }
  // The const_cast only gets the pointer into a Tensor, which has no read-only kind. Nothing in
  // the library writes to an operator's input; a caller who writes here gets SIGSEGV, not a
  // changed file, because the pages are mapped without write permission.
  return Tensor::wrap(const_cast<std::byte*>(bytes), entry.shape, *dtype, file.mapped,
                      Backing::file);
}

void drop_pages(const Tensor& tensor) {
  if (!tensor.is_read_only() || tensor.numel() == 0) return;
  std::int64_t lowest = 0, highest = 0;  // elements from the first, whatever the strides
  for (int axis = 0; axis < tensor.rank(); ++axis) {
    const std::int64_t reach = (tensor.size(axis) - 1) * tensor.stride(axis);
    (reach < 0 ? lowest : highest) += reach;
  }
  const auto item = static_cast<std::int64_t>(size_of(tensor.dtype()));
  const auto* first = static_cast<const std::byte*>(tensor.raw());
  drop_mapped_pages(first + lowest * item, first + (highest + 1) * item);
}

}  // namespace qkv

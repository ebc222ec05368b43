#include "io/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "io/file_kind.h"
#include "io/safetensors_dtype.h"
#include "io/shown.h"

namespace qkv {
namespace {

// Reads the header event by event instead of building a JSON tree: what does not belong stops
// the parser at once, so neither deep nesting nor a long wrong header costs memory or stack.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

  bool start_object(std::size_t) override {
    switch (at_) {
      case At::start: at_ = At::top; break;
      case At::tensor_value:
        at_ = At::tensor;
        entry_ = {};
        shape_.clear();
        offsets_.clear();
        seen_ = {};
        break;
      case At::metadata_value: at_ = At::metadata; break;
      default: refuse("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    switch (at_) {
      case At::top:
        name_ = name;
        at_ = name == "__metadata__" ? At::metadata_value : At::tensor_value;
        if (at_ == At::metadata_value) {
          require(!std::exchange(has_metadata_, true), "__metadata__ appears twice");
        } else {
          require(!header_.tensors.contains(name), "the tensor appears twice");
        }
        break;
      case At::metadata:
        require(!header_.metadata.contains(name), "a key of __metadata__ appears twice");
        metadata_key_ = name;
        at_ = At::metadata_text;
        break;
      case At::tensor: open_field(name); break;
      default: refuse("a key");
    }
    return true;
  }

  bool end_object() override {
    if (at_ == At::tensor) {
      require(seen_.dtype && seen_.shape && seen_.offsets && offsets_.size() == 2,
              "expected dtype, shape and two data_offsets");
      entry_.shape = checked_shape();
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
      header_.tensors.emplace(std::move(name_), std::move(entry_));
    }
    at_ = at_ == At::top ? At::finished : At::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (at_ == At::shape) {
      at_ = At::extents;
    } else if (at_ == At::offsets) {
      at_ = At::bounds;
    } else {
      refuse("an array");
    }
    return true;
  }
  bool end_array() override {
    at_ = At::tensor;
    return true;
  }

  bool string(string_t& value) override {
    if (at_ == At::dtype) {
      require(is_dtype_name(value), "the dtype is none");
      entry_.dtype = value;
      at_ = At::tensor;
    } else if (at_ == At::metadata_text) {
      header_.metadata.emplace(std::move(metadata_key_), value);
      at_ = At::metadata;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kLargest =
        static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    if (at_ == At::extents) {
      require(value <= kLargest, "an extent is too large");
      require(shape_.size() < kMaxRank, "the shape has too many axes");
      shape_.push_back(static_cast<std::int64_t>(value));
    } else if (at_ == At::bounds) {
      require(offsets_.size() < 2, "data_offsets has more than two numbers");
      offsets_.push_back(value);
    } else {
      refuse("a number");
    }
    return true;
  }

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("a boolean"); }
  bool number_integer(number_integer_t) override { refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { refuse("a fractional number"); }
  bool binary(binary_t&) override { refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    // The parser's own message quotes the text it stumbled over, which may be all of the file.
    fail("'{}': the header is not valid JSON at byte {}", path_, position);
  }

 private:
  enum class At {
    start,
    top,
    finished,  // { name: ... }
    tensor_value,
    tensor,
    dtype,
    shape,
    extents,
    offsets,
    bounds,
    metadata_value,
    metadata,
    metadata_text,
  };

  void open_field(const std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &seen_.dtype;
      at_ = At::dtype;
    } else if (name == "shape") {
      seen = &seen_.shape;
      at_ = At::shape;
    } else if (name == "data_offsets") {
      seen = &seen_.offsets;
      at_ = At::offsets;
    }
    require(seen != nullptr, "expected only dtype, shape and data_offsets");
    require(!std::exchange(*seen, true), "a field appears twice");
  }

  // Dtypes to come are let in, anything that could not be one is not.
  static bool is_dtype_name(std::string_view name) {
    constexpr std::size_t kLongest = 16;
    return !name.empty() && name.size() <= kLongest &&
           std::all_of(name.begin(), name.end(), [](char c) {
             return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
           });
  }

  Shape checked_shape() const {
    try {
      return Shape(shape_);
    } catch (const Error& error) {  // too many elements: say whose
      fail("'{}': tensor '{}': {}", path_, shown_name(name_), error.what());
    }
  }

  void require(bool condition, const char* problem) const {
    // Not check(): its arguments would be made for each of many thousand fields that are right.
    if (!condition) fail("'{}': header entry '{}': {}", path_, shown_name(name_), problem);
  }
  [[noreturn]] void refuse(const char* what) const {
    fail("'{}': header entry '{}': {} where none belongs", path_, shown_name(name_), what);
  }

  const std::string& path_;
  SafetensorsHeader& header_;
  At at_ = At::start;
  std::string name_, metadata_key_;
  SafetensorsEntry entry_;
  std::vector<std::int64_t> shape_;
  std::vector<std::uint64_t> offsets_;
  struct {
    bool dtype = false, shape = false, offsets = false;
  } seen_;
  bool has_metadata_ = false;
};

// What is wrong with an entry, or nothing.
std::string problem_of(const SafetensorsEntry& entry, std::uint64_t data_bytes) {
  const auto& [dtype, shape, begin, end] = entry;
  if (begin > end || end > data_bytes) {
    return fmt::format("data_offsets [{}, {}] do not lie within the {} bytes of data", begin, end,
                       data_bytes);
  }
  const auto bits = safetensors_bits(dtype);
  if (!bits) return {};  // reported when the tensor is asked for
  const auto count = static_cast<std::uint64_t>(shape.numel());
  if (count % 8 * *bits % 8 != 0) return fmt::format("{} {} ends within a byte", dtype, shape);
  // In this order nothing overflows: Shape allows 2^59 elements, and no element has over 64 bits.
  const std::uint64_t bytes = count / 8 * *bits + count % 8 * *bits / 8;
  if (bytes == end - begin) return {};
  return fmt::format("{} {} takes {} bytes, data_offsets [{}, {}] hold {}", dtype, shape, bytes,
                     begin, end, end - begin);
}

void check_entries(const std::string& path, const SafetensorsHeader& header,
                   std::uint64_t data_bytes) {
  for (const auto& [name, entry] : header.tensors) {
    const std::string problem = problem_of(entry, data_bytes);
    if (!problem.empty()) fail("'{}': tensor '{}': {}", path, shown_name(name), problem);
  }
}

// Every byte belongs to exactly one tensor, as the format demands: nothing can hide in a gap.
void check_tiling(const std::string& path, const SafetensorsHeader& header,
                  std::uint64_t data_bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, entry] : header.tensors) ranges.emplace_back(entry.begin, entry.end);
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    check(begin == covered, "'{}': the data of tensors {} at byte {}", path,
          begin < covered ? "overlap" : "leaves a hole", std::min(begin, covered));
    covered = end;
  }
  check(covered == data_bytes, "'{}': {} bytes after the last tensor belong to none", path,
        data_bytes - covered);
}

// Names what people most often have in hand instead.
void refuse_other_formats(std::string_view file, const std::string& path) {
  const std::string kind = file_kind(file);
  if (!kind.empty()) fail("'{}': not a safetensors file but {}", path, kind);
}

}  // namespace

SafetensorsHeader read_safetensors_header(std::span<const std::byte> file,
                                          const std::string& path) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  check(file.size() >= kSafetensorsPrefix, "'{}': {} bytes are too few for a safetensors file{}",
        path, file.size(), bytes.empty() ? ": it is empty" : "");
  static_assert(std::endian::native == std::endian::little, "tensors are mapped, not converted");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kSafetensorsPrefix);
  if (length > kLongestHeader || length > file.size() - kSafetensorsPrefix) {
    refuse_other_formats(bytes, path);
  }
  check(length <= kLongestHeader && length <= file.size() - kSafetensorsPrefix,
        "'{}': a header of {} bytes does not fit in a file of {} (at most {} are allowed)", path,
        length, file.size(), kLongestHeader);
  const std::string_view json = bytes.substr(kSafetensorsPrefix, length);
  // The parser would skip white space and a byte-order mark; the format allows neither in front.
  check(!json.empty() && json.front() == '{', "'{}': the header does not begin with '{{'", path);
  SafetensorsHeader header;
  header.data_begin = kSafetensorsPrefix + length;
  HeaderReader reader(path, header);
  const bool read = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  check(read, "'{}': the header is not valid JSON", path);
  const std::uint64_t data_bytes = file.size() - header.data_begin;
  check_entries(path, header, data_bytes);
  check_tiling(path, header, data_bytes);
  return header;
}

}  // namespace qkv

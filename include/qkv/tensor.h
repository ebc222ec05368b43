// Tensor: bytes, shape, strides, dtype, device. It has no operations; those are in ops.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "qkv/device.h"
#include "qkv/dtype.h"

namespace qkv {

inline constexpr int kMaxRank = 8;

// Up to kMaxRank non-negative extents, stored inline.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(std::span<const std::int64_t> extents);

  int rank() const { return rank_; }
  // Negative axes count from the back, so shape[-1] is the last extent.
  std::int64_t operator[](int axis) const;
  // The number of elements. Construction has checked that it fits.
  std::int64_t numel() const;
  std::span<const std::int64_t> extents() const {
    return {extents_.data(), static_cast<std::size_t>(rank_)};
  }

  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

// "[2, 3, 4]"
std::string to_string(const Shape& shape);

// Where bytes come from.
enum class Backing : std::uint8_t {
  own,     // allocated for this storage: tensors alone know them
  memory,  // somebody else's; may be written
  file,    // mapped read-only: writing ends the program, and pages can be had from the file again
};

struct TensorOptions {
  DType dtype = DType::f32;
  Device device{};
};

// The owner of a run of bytes on one device; shared by the tensors that view it.
class Storage {
 public:
  using Release = void (*)(void* data, void* context);

  Storage(void* data, std::size_t bytes, Device device, Release release, void* context,
          Backing backing = Backing::own)
      : data_(data),
        bytes_(bytes),
        device_(device),
        backing_(backing),
        release_(release),
        context_(context) {}
  ~Storage() {
    if (release_ != nullptr) release_(data_, context_);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  Backing backing() const { return backing_; }

 private:
  void* data_;
  std::size_t bytes_;
  Device device_;
  Backing backing_;
  Release release_;
  void* context_;
};

// A strided view of a shared Storage. Copying a Tensor copies the view, never the bytes.
// Any number of threads may read one Tensor, copy it and use it in operators, which write to
// tensors of their own. Writing its elements through data(), and assigning to it, is up to one
// thread alone.
class Tensor {
 public:
  Tensor() = default;  // undefined: what an optional argument holds when absent
  // Undefined, too: an optional result that was not asked for. `why` has static storage and follows
  // what an Error says of its use: "an undefined tensor has no data: <why>".
  static Tensor undefined(const char* why) {
    Tensor tensor;
    tensor.why_undefined_ = why;
    return tensor;
  }

  static Tensor empty(const Shape& shape, const TensorOptions& options = {});
  static Tensor zeros(const Shape& shape, const TensorOptions& options = {});
  static Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
  // Copies `values` (row-major) into a new CPU tensor.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape) {
    static_assert(!std::is_same_v<std::remove_cv_t<T>, double>,
                  "no tensor holds double: convert the values to float");
    return copy_of(values.data(), values.size(), dtype_of<T>, shape);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  // A view of memory the caller keeps alive (or hands over through `owner`).
  static Tensor wrap(void* data, const Shape& shape, DType dtype,
                     std::shared_ptr<const void> owner = nullptr,
                     Backing backing = Backing::memory);

  bool defined() const { return storage_ != nullptr; }
  // ": <why>" of Tensor::undefined, else empty.
  std::string why_undefined() const;
  // Names the value: copies of a tensor share it, views and results have their own. 0 = undefined.
  std::uint64_t id() const { return id_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t size(int axis) const { return shape_[axis]; }
  std::int64_t numel() const { return shape_.numel(); }
  // In elements, not bytes. Negative axes count from the back.
  std::int64_t stride(int axis) const;
  DType dtype() const { return dtype_; }
  Device device() const;
  bool is_contiguous() const;
  // Mapped from a file: what would change it in place (an optimiser) refuses it.
  bool is_read_only() const { return defined() && storage_->backing() == Backing::file; }

  // Whether anybody beside this tensor can see its bytes: other tensors, or whose they are.
  bool is_shared() const {
    return defined() && (storage_.use_count() > 1 || storage_->backing() != Backing::own);
  }

  // The first element; throws Error when T is not the tensor's dtype.
  template <class T>
  T* data() const {
    static_assert(!std::is_same_v<T, double>,
                  "no tensor holds double: to_vector<double>() converts, and data<float>() is f32");
    require_dtype(dtype_of<T>);
    return static_cast<T*>(raw());
  }
  void* raw() const;

  // All elements in row-major order, whatever the strides; waits for the device if it is another.
  // T is the tensor's dtype, or double, which holds the values of every dtype but i64.
  template <class T>
  std::vector<T> to_vector() const {
    if constexpr (std::is_same_v<T, double>) {
      return to_doubles();
    } else {
      return to_own<T>();
    }
  }

  // The same bytes seen with another shape, strides and first element, checked against the
  // storage. Operators that only rearrange (transpose, slice, reshape) are made of this.
  Tensor view(const Shape& shape, std::span<const std::int64_t> strides,
              std::int64_t first_element) const;

 private:
  static Tensor copy_of(const void* values, std::size_t count, DType dtype, const Shape& shape);
  void require_dtype(DType dtype) const;
  void copy_to(void* destination) const;
  std::vector<double> to_doubles() const;
  [[noreturn]] void fail_for_room(std::size_t item) const;

  // Room for all elements. What a standard container throws is no Error.
  template <class T>
  std::vector<T> room_for() const {
    try {
      return std::vector<T>(static_cast<std::size_t>(numel()));
    } catch (const std::exception&) {  // bad_alloc, length_error
      fail_for_room(sizeof(T));
    }
  }
  template <class T>
  std::vector<T> to_own() const {
    require_dtype(dtype_of<T>);
    std::vector<T> values = room_for<T>();
    if constexpr (std::is_same_v<T, bool>) {
      std::vector<std::uint8_t> bytes = room_for<std::uint8_t>();
      copy_to(bytes.data());
      for (std::size_t i = 0; i < bytes.size(); ++i) values[i] = bytes[i] != 0;
    } else {
      copy_to(values.data());
    }
    return values;
  }

  std::shared_ptr<Storage> storage_;
  std::uint64_t id_ = 0;
  std::int64_t offset_ = 0;  // of the first element, in bytes
  Shape shape_;
  std::array<std::int64_t, kMaxRank> strides_{};
  DType dtype_ = DType::f32;
  const char* why_undefined_ = nullptr;
};

}  // namespace qkv

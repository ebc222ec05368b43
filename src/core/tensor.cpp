#include "qkv/tensor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/backend.h"
#include "core/check.h"
#include "core/dispatch.h"

namespace qkv {
namespace {

// Extents large enough to overflow byte counts are refused here, so nothing later has to ask.
constexpr std::int64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / 16;

int wrap_axis(int axis, int rank) {
  const int wrapped = axis < 0 ? axis + rank : axis;
  check(wrapped >= 0 && wrapped < rank, "axis {} is out of range for rank {}", axis, rank);
  return wrapped;
}

// The span of elements a strided shape touches, relative to its first element.
struct Extent {
  std::int64_t lowest = 0, highest = 0;
};
Extent extent_of(const Shape& shape, std::span<const std::int64_t> strides) {
  Extent extent;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    std::int64_t reach = 0;
    check(!__builtin_mul_overflow(shape[axis] - 1, strides[axis], &reach),
          "view: stride {} of axis {} is too large", strides[axis], axis);
    std::int64_t& bound = reach < 0 ? extent.lowest : extent.highest;
    check(!__builtin_add_overflow(bound, reach, &bound), "view: the strides reach too far");
  }
  return extent;
}

std::array<std::int64_t, kMaxRank> row_major_strides(const Shape& shape) {
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= std::max<std::int64_t>(shape[axis], 1);
  }
  return strides;
}

// What an integer cannot hold, C++ leaves undefined.
void check_fill(double value, DType dtype) {
  if (is_floating(dtype) || dtype == DType::boolean) return;
  dispatch_all(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      // Limits as doubles: the largest i64 becomes 2^63, one more than there is.
      const auto below = static_cast<double>(std::numeric_limits<T>::min());
      const auto above = std::ldexp(1.0, std::numeric_limits<T>::digits);
      check(std::trunc(value) >= below && value < above,
            "Tensor::full: {} is not in the range of {}", value, dtype);
    }
  });
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void release_owner(void*, void* context) {
  delete static_cast<std::shared_ptr<const void>*>(context);
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> extents)
    : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) {
  check(extents.size() <= kMaxRank, "a shape has at most {} axes, got {}", kMaxRank,
        extents.size());
  std::int64_t count = 1;
  for (const std::int64_t extent : extents) {
    check(extent >= 0, "a shape has no negative extent, got {} at axis {}", extent, rank_);
    check(!__builtin_mul_overflow(count, std::max<std::int64_t>(extent, 1), &count) &&
              count <= kMaxElements,
          "a shape of more than {} elements cannot be addressed", kMaxElements);
    extents_[rank_++] = extent;
  }
}

std::int64_t Shape::operator[](int axis) const { return extents_[wrap_axis(axis, rank_)]; }

std::int64_t Shape::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : extents()) count *= extent;
  return count;
}

bool operator==(const Shape& a, const Shape& b) {
  return a.rank_ == b.rank_ && a.extents_ == b.extents_;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

Tensor Tensor::empty(const Shape& shape, const TensorOptions& options) {
  Tensor tensor;
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(options.dtype);
  tensor.storage_ = backend(options.device).allocate(bytes);
  tensor.id_ = next_id();
  tensor.shape_ = shape;
  tensor.strides_ = row_major_strides(shape);
  tensor.dtype_ = options.dtype;
  return tensor;
}

Tensor Tensor::zeros(const Shape& shape, const TensorOptions& options) {
  return full(shape, 0, options);
}

Tensor Tensor::full(const Shape& shape, double value, const TensorOptions& options) {
  check_fill(value, options.dtype);
  Tensor tensor = empty(shape, options);
  backend(options.device).fill(tensor, value);
  return tensor;
}

Tensor Tensor::copy_of(const void* values, std::size_t count, DType dtype, const Shape& shape) {
  check(count == static_cast<std::size_t>(shape.numel()),
        "Tensor::from: {} values do not fill shape {}", count, shape);
  Tensor tensor = empty(shape, {dtype});
  if (count > 0) std::memcpy(tensor.raw(), values, count * size_of(dtype));
  return tensor;
}

Tensor Tensor::wrap(void* data, const Shape& shape, DType dtype, std::shared_ptr<const void> owner,
                    Backing backing) {
  check(data != nullptr || shape.numel() == 0, "Tensor::wrap: data is null for shape {}", shape);
  Tensor tensor;
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  auto context = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  tensor.storage_ =
      std::make_shared<Storage>(data, bytes, kCpu, release_owner, context.get(), backing);
  static_cast<void>(context.release());  // the storage has it now
  tensor.id_ = next_id();
  tensor.shape_ = shape;
  tensor.strides_ = row_major_strides(shape);
  tensor.dtype_ = dtype;
  return tensor;
}

std::int64_t Tensor::stride(int axis) const { return strides_[wrap_axis(axis, rank())]; }

Device Tensor::device() const {
  if (!defined()) fail("an undefined tensor has no device{}", why_undefined());
  return storage_->device();
}

std::string Tensor::why_undefined() const {
  return defined() || why_undefined_ == nullptr ? std::string()
                                                : std::string(": ") + why_undefined_;
}

bool Tensor::is_contiguous() const {
  std::int64_t step = 1;
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (shape_[axis] != 1 && strides_[axis] != step) return numel() == 0;
    step *= shape_[axis];
  }
  return true;
}

void* Tensor::raw() const {
  if (!defined()) fail("an undefined tensor has no data{}", why_undefined());
  return static_cast<std::byte*>(storage_->data()) + offset_;
}

Tensor Tensor::view(const Shape& shape, std::span<const std::int64_t> strides,
                    std::int64_t first_element) const {
  if (!defined()) fail("view: the tensor is undefined{}", why_undefined());
  check(strides.size() == static_cast<std::size_t>(shape.rank()),
        "view: shape {} needs {} strides, got {}", shape, shape.rank(), strides.size());
  Tensor result = *this;
  const auto item = static_cast<std::int64_t>(size_of(dtype_));
  const auto available = static_cast<std::int64_t>(storage_->bytes()) / item;
  const bool is_empty = shape.numel() == 0;
  const Extent extent = is_empty ? Extent{} : extent_of(shape, strides);
  std::int64_t first = 0, lowest = 0, highest = 0;
  const bool overflow = __builtin_add_overflow(offset_ / item, first_element, &first) ||
                        __builtin_add_overflow(first, extent.lowest, &lowest) ||
                        __builtin_add_overflow(first, extent.highest, &highest);
  // An empty view may stand one past the end, where slicing everything away leaves it.
  check(!overflow && lowest >= 0 && highest < available + (is_empty ? 1 : 0),
        "view: shape {} with these strides reaches outside the {} elements of its storage", shape,
        available);
  result.id_ = next_id();
  result.offset_ = first * item;
  result.shape_ = shape;
  // Along an axis of one element nothing steps, and nothing at all where there are no elements:
  // strides there may be any number, but none that arithmetic could overflow with.
  result.strides_ = row_major_strides(shape);
  for (int axis = 0; axis < shape.rank() && !is_empty; ++axis) {
    const std::int64_t stride = strides[axis];
    const bool keeps = shape[axis] > 1 || (-available <= stride && stride <= available);
    result.strides_[axis] = keeps ? stride : 0;
  }
  return result;
}

void Tensor::require_dtype(DType dtype) const {
  if (!defined()) fail("an undefined tensor has no data{}", why_undefined());
  check(dtype_ == dtype, "the tensor holds {}, not {}", dtype_, dtype);
}

void Tensor::fail_for_room(std::size_t item) const {
  fail<OutOfMemory>("out of memory: {} values of {} bytes", numel(), item);
}

std::vector<double> Tensor::to_doubles() const {
  if (!defined()) fail("an undefined tensor has no data{}", why_undefined());
  check(dtype_ != DType::i64, "the tensor holds i64, and a double does not hold all of them");
  auto values = room_for<double>();
  dispatch_all(dtype_, [&]<class T>() {
    const std::vector<T> stored = to_vector<T>();
    std::transform(stored.begin(), stored.end(), values.begin(), [](T value) {
      if constexpr (std::is_class_v<T>) {
        return static_cast<double>(static_cast<float>(value));
      } else {
        return static_cast<double>(value);
      }
    });
  });
  return values;
}

void Tensor::copy_to(void* destination) const {
  if (!defined()) fail("an undefined tensor has no data{}", why_undefined());
  if (numel() == 0) return;
  Tensor target = wrap(destination, shape_, dtype_);
  backend(device()).copy(*this, target);
}

}  // namespace qkv

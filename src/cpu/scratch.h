// Aligned working memory of a kernel, kept per thread for the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace qkv::cpu {

constexpr std::int64_t round_up(std::int64_t x, std::int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// 64-byte aligned; throws Error when there is not enough memory. A block given back is kept by its
// thread (a few per size, 16 MiB in all) so that kernels in a loop do not pay for fresh pages.
void* take_scratch(std::size_t bytes);
void give_back_scratch(void* data, std::size_t bytes);

// `count` elements, uninitialised, with one spare cache line at the end so that a full vector may
// be read from the last element.
template <class T>
class Scratch {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Scratch() = default;
  explicit Scratch(std::int64_t count)
      : data_(nullptr, Release{static_cast<std::size_t>(count) * sizeof(T) + 64}) {
    data_.reset(static_cast<T*>(take_scratch(data_.get_deleter().bytes)));
  }

  T* get() const { return data_.get(); }
  T& operator[](std::int64_t i) const { return data_[static_cast<std::size_t>(i)]; }

 private:
  struct Release {
    std::size_t bytes = 0;
    void operator()(T* p) const { give_back_scratch(p, bytes); }
  };
  std::unique_ptr<T[], Release> data_;
};

// The same on the stack, where an array of bf16 would be cleared each time.
template <class T, std::int64_t kCount>
class Room {
 public:
  Room() {}  // NOLINT(modernize-use-equals-default): a default would be deleted
  T* get() { return data_; }

 private:
  union {
    T data_[static_cast<std::size_t>(kCount)];
  };
};

}  // namespace qkv::cpu

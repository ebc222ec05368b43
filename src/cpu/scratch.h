// Aligned working memory of a kernel.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "core/check.h"

namespace qkv::cpu {

constexpr std::size_t kScratchAlignment = 64;

constexpr std::int64_t round_up(std::int64_t x, std::int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// `count` elements, uninitialised, 64-byte aligned, with one spare cache line at the end so that
// a full vector may be read from the last element.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(
        round_up(count * static_cast<std::int64_t>(sizeof(T)), kScratchAlignment) +
        static_cast<std::int64_t>(kScratchAlignment));
    data_.reset(static_cast<T*>(std::aligned_alloc(kScratchAlignment, bytes)));
    check(data_ != nullptr, "out of memory: {} bytes of working memory on cpu", bytes);
  }

  T* get() const { return data_.get(); }
  T& operator[](std::int64_t i) const { return data_[static_cast<std::size_t>(i)]; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
};

}  // namespace qkv::cpu

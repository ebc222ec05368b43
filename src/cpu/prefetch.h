// Asking for memory before it is needed: it answers while something else is computed. An address
// may lie outside of any tensor; a prefetch does not fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qkv::cpu {

// Rows of a head lie a page apart, where no hardware looks ahead: so many rows early.
inline constexpr std::int64_t kAhead = 6;

// Bytes [begin, end) from `from` on, towards the second-level cache.
inline void prefetch_later(const void* from, std::int64_t begin, std::int64_t end) {
  const auto* bytes = static_cast<const std::byte*>(from);
  for (std::int64_t i = begin / 64 * 64; i < end; i += 64) __builtin_prefetch(bytes + i, 0, 2);
}

// Rows that are read next, asked for line by line in the order in which they lie, some with each
// step of the work on those before. Column by column a decode took half as long again.
//
// Rows that come from memory are asked for kFarRows earlier, towards the second-level cache: the
// first cannot wait for as many lines as memory takes to answer. It is asked for them as well
// (`both`) where there is enough work on a row; where there is little, that only keeps it busy.
enum class Ask : std::uint8_t { near, both, far };
inline constexpr std::int64_t kFarRows = 64;

template <Ask kAsk = Ask::near>
class RowsAhead {
 public:
  // Rows of `width` bytes, `stride` bytes apart.
  RowsAhead(const void* first, std::int64_t stride, std::int64_t width)
      : row_(static_cast<const std::byte*>(first)), stride_(stride), width_(width) {}

  template <int kLines>
  [[gnu::always_inline]] void ask() {
    for (int i = 0; i < kLines; ++i) {
      if constexpr (kAsk != Ask::far) __builtin_prefetch(row_ + at_);
      if constexpr (kAsk != Ask::near) __builtin_prefetch(row_ + at_ + kFarRows * stride_, 0, 2);
      at_ += 64;
      const bool ends = at_ >= width_;
      row_ += ends ? stride_ : 0;
      at_ = ends ? 0 : at_;
    }
  }

 private:
  const std::byte* row_;
  std::int64_t stride_, width_, at_ = 0;
};

// Rows of several tensors, asked for a few lines at a time, towards the second-level cache.
class TensorsAhead {
 public:
  // `rows` of `width` bytes, `stride` bytes apart.
  void add(const void* first, std::int64_t stride, std::int64_t width, std::int64_t rows) {
    if (rows <= 0 || width <= 0) return;
    if (stride == width) {  // one long row
      width *= rows;
      rows = 1;
    }
    parts_[count_++] = {static_cast<const std::byte*>(first), stride, width, rows};
    lines_ += rows * ((width + 63) / 64);
  }
  // From now on, `steps` calls of ask() ask for all.
  void share(std::int64_t steps) { lines_ = steps > 1 ? (lines_ + steps - 1) / steps : lines_; }

  void ask() {
    for (std::int64_t left = lines_; left > 0 && part_ < count_;) {
      Part& part = parts_[part_];
      const std::int64_t end = at_ + 64 * left < part.width ? at_ + 64 * left : part.width;
      for (; at_ < end; at_ += 64, --left) __builtin_prefetch(part.row + at_, 0, 2);
      if (at_ < part.width) return;
      at_ = 0;
      part.row += part.stride;
      if (--part.rows == 0) ++part_;
    }
  }

 private:
  struct Part {
    const std::byte* row;
    std::int64_t stride, width, rows;
  };
  Part parts_[3];
  int count_ = 0, part_ = 0;
  std::int64_t at_ = 0, lines_ = 0;
};

// `bytes` of each row, `stride` bytes apart, to be written soon.
inline void prefetch_to_write(const void* first, std::int64_t stride, std::int64_t rows,
                              std::int64_t bytes) {
  const auto* row = static_cast<const std::byte*>(first);
  for (std::int64_t r = 0; r < rows; ++r, row += stride) {
    for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 1);
  }
}

// One row of `count` elements, to be read.
template <class T>
void prefetch_row(const T* x, std::int64_t count) {
  prefetch_later(x, 0, count * static_cast<std::int64_t>(sizeof(T)));
}

}  // namespace qkv::cpu

// Matrix products: from problems to blocks and tasks for an engine (gemm_engine.h).
//
// A is packed once for all threads, some rows at a time, and where these are too long some of their
// depth at a time; a task takes a range of columns, reads or packs the panels of B it needs, sums
// over the depth and stores its part of y. The order of every sum is the engine's alone: neither
// the tasks nor the number of threads nor the pieces of depth change it.
#include "cpu/gemm.h"

#include <algorithm>
#include <cmath>

#include "core/threads.h"
#include "cpu/kernels.h"
#include "qkv/threads.h"

namespace qkv::cpu {
namespace {

constexpr std::int64_t kLeftBytes = std::int64_t{8} << 20;  // of packed A
constexpr std::int64_t kSums = std::int64_t{4} << 20;       // that wait for more of the depth
constexpr std::int64_t kPackAlone = 1 << 15;                // elements one thread packs as soon
constexpr double kTaskWork = 1 << 17;                       // products worth a task

std::int64_t divide_up(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }
std::int64_t bytes_of(DType dtype, std::int64_t count) {
  return count * static_cast<std::int64_t>(size_of(dtype));
}

// A part of the depth; it begins at a multiple of the engine's blocks.
struct Stretch {
  std::int64_t begin, end;
};

// Rows [first, first + rows) of A along a stretch of the depth, packed.
class Left {
 public:
  Left(const Product& p, std::int64_t first, std::int64_t rows, const Stretch& depth)
      : engine_(p.engine),
        depth_(depth),
        room_(round_up(rows, engine_.row_multiple)),
        data_(bytes_of(engine_.operand,
                       divide_up(depth.end - depth.begin, engine_.depth_block) * room_) *
              engine_.left_stride) {
    const std::int64_t length = depth.end - depth.begin;
    const std::int64_t piece =
        rows * length <= kPackAlone ? room_ : round_up(32, engine_.row_multiple);
    parallel_for(divide_up(room_, piece), [&](std::int64_t task) {
      const std::int64_t begin = task * piece, end = std::min(room_, begin + piece);
      for (std::int64_t k = depth.begin; k < depth.end; k += engine_.depth_block) {
        pack(p,
             {first + begin, std::min(end, rows) - begin, k,
              std::min(engine_.depth_block, depth.end - k)},
             begin, end);
      }
    });
  }
  const Stretch& depth() const { return depth_; }

  const std::byte* at(std::int64_t row, std::int64_t k) const {
    return data_.get() + offset(row, k);
  }

 private:
  std::int64_t offset(std::int64_t row, std::int64_t k) const {
    const std::int64_t block = (k - depth_.begin) / engine_.depth_block;
    return bytes_of(engine_.operand, (block * room_ + row) * engine_.left_stride);
  }
  void pack(const Product& p, const Window& window, std::int64_t begin, std::int64_t end) {
    const std::int64_t depth = round_up(window.columns, engine_.depth_multiple);
    std::byte* to = data_.get() + offset(begin, window.column);
    engine_.pack_left(p.a, window,
                      {to, engine_.operand, p.round, engine_.left_stride, depth, end - begin});
  }

  const GemmEngine& engine_;
  Stretch depth_;
  std::int64_t room_;
  Scratch<std::byte> data_;
};

// How the columns and rows of a product become tasks.
struct Plan {
  bool streams;                // the panels read side by side lie far apart
  std::int64_t columns;        // at once: sums of these are kept
  std::int64_t steps;          // of so many columns, one after the other, make a task
  std::int64_t rows;           // of a task
  std::int64_t across, along;  // tasks
};

Plan make_plan(const Product& p, std::int64_t rows) {
  constexpr std::int64_t kFewRows = 16, kNarrow = 96, kLow = 48, kMostStreamed = 2048;
  const std::int64_t threads = num_threads();
  const double work = static_cast<double>(rows) * static_cast<double>(p.n) *
                      static_cast<double>(std::max<std::int64_t>(p.k, 16));
  const std::int64_t wanted = threads == 1
                                  ? 1
                                  : std::min<std::int64_t>(p.engine.thread_tasks * threads,
                                                           1 + std::llround(work / kTaskWork));
  Plan plan{};
  if (rows <= kFewRows && p.packed != nullptr) {  // B streams by, panel after panel
    const std::int64_t least = p.engine.stream_columns;
    const std::int64_t task = round_up(divide_up(p.n, wanted), least);
    plan.streams = rows <= p.engine.stream_rows;
    plan.steps = divide_up(task, plan.streams ? kMostStreamed : least);
    plan.columns = round_up(divide_up(task, plan.steps), least);
    plan.rows = rows;
  } else {
    std::int64_t along = divide_up(rows, p.engine.most_rows);
    std::int64_t across = divide_up(p.n, p.engine.most_columns);
    while (along * across < wanted && p.n > across * kNarrow) ++across;
    while (along * across < wanted && rows > along * kLow) ++along;
    const std::int64_t panel = std::max(p.engine.panel, p.engine.native_columns);
    plan.columns = round_up(divide_up(p.n, across), panel);
    plan.steps = 1;
    plan.rows = round_up(divide_up(rows, along), p.engine.row_multiple);
  }
  plan.across = divide_up(p.n, plan.columns * plan.steps);
  plan.along = divide_up(rows, plan.rows);
  return plan;
}

// Room for the sums of a task.
std::int64_t sums_stride(const Plan& plan) { return round_up(plan.columns, 32) + 16; }
std::int64_t sums_size(const Product& p, const Plan& plan, std::int64_t rows) {
  return round_up(std::min(plan.rows, rows), p.engine.row_multiple) * sums_stride(plan);
}

// The work of one task on its thread.
class Worker {
 public:
  // Sums are kept in `c`, from one stretch of the depth to the next.
  Worker(const Product& p, const Left& left, const Plan& plan, std::int64_t rows, float* c)
      : p_(p), engine_(p.engine), left_(left), c_stride_(sums_stride(plan)), c_(c) {
    const std::int64_t columns = round_up(plan.columns, 32);
    widens_ = p.packed != nullptr && engine_.native == nullptr && p.packed->stored != DType::f32 &&
              rows > engine_.narrow_rows;
    if (p.packed == nullptr || widens_) {
      block_dtype_ = engine_.native != nullptr ? DType::bf16 : DType::f32;
      block_ = Scratch<std::byte>(bytes_of(block_dtype_, columns * engine_.depth_block));
    }
  }

  // Rows [row, row + rows) of A, which are rows y_row .. of y.
  void run(std::int64_t row, std::int64_t rows, std::int64_t y_row, std::int64_t column,
           std::int64_t columns) {
    const Finish finish = finish_at(y_row, column);
    if (p_.k == 0) {
      std::fill_n(c_, rows * c_stride_, 0.0f);
      return finish_all(rows, columns, finish);
    }
    multiply_depth(row, column, c_, {rows, columns, 0}, 1, &finish);
  }

  // The same for the few rows of A that a product begins with. The panels of one step lie as far
  // apart as can be, each a stream that goes on with the next step: memory answers long streams
  // faster than short ones, and several faster than one.
  void run_streams(std::int64_t rows, std::int64_t y_row, std::int64_t column,
                   std::int64_t columns) {
    const std::int64_t panel = engine_.panel, step = engine_.stream_columns;
    const std::int64_t apart = p_.k == 0 ? 0 : columns / step;  // panels, and steps
    for (std::int64_t i = 0; i < apart; ++i) {
      multiply_depth(0, column + i * panel, c_ + i * step, {rows, step, 0}, apart, nullptr);
    }
    const std::int64_t at_once = kMostColumns / panel;
    alignas(64) float tile[kMostStreamRows * kMostColumns];
    for (std::int64_t stream = 0; stream < step / panel; ++stream) {
      const Finish finish = finish_at(y_row, column + stream * apart * panel);
      for (std::int64_t i = 0; i < apart; i += at_once) {
        const std::int64_t count = std::min(at_once, apart - i);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t j = 0; j < count; ++j) {
            std::copy_n(c_ + r * c_stride_ + (i + j) * step + stream * panel, panel,
                        tile + r * kMostColumns + j * panel);
          }
        }
        engine_.finish(tile, kMostColumns, rows, count * panel, finish.at(0, i * panel));
      }
    }
    const std::int64_t done = apart * step;
    if (done < columns) run(0, rows, y_row, column + done, columns - done);
  }

 private:
  Finish finish_at(std::int64_t row, std::int64_t column) const {
    return Finish{p_.bias, p_.activation, p_.y}.at(row, column);
  }

  // Sums over the depth for a block of columns, whose panels are `apart` panels from each other.
  void multiply_depth(std::int64_t row, std::int64_t column, float* c, TileExtents size,
                      std::int64_t apart, const Finish* finish) {
    const Stretch& depth = left_.depth();
    for (std::int64_t k = depth.begin; k < depth.end; k += engine_.depth_block) {
      size.depth = std::min(engine_.depth_block, p_.k - k);
      RightBlock b = right(k, size.depth, column, size.columns);
      b.panel_stride *= apart;
      engine_.multiply(engine_, {left_.at(row, k), b, c, c_stride_, size, k > 0,
                                 k + size.depth == p_.k ? finish : nullptr});
    }
  }

  RightBlock right(std::int64_t k, std::int64_t depth, std::int64_t column, std::int64_t columns) {
    const std::int64_t padded = round_up(depth, engine_.depth_multiple) * engine_.panel;
    if (p_.packed == nullptr) {
      engine_.pack_right(engine_, p_.b, {k, depth, column, columns},
                         {block_.get(), block_dtype_, padded});
      return {block_.get(), block_dtype_, padded};
    }
    const CpuPacked& packed = *p_.packed;
    const std::int64_t element = column / engine_.panel * packed.panel_stride + k * engine_.panel;
    const RightBlock stored{packed.data() + bytes_of(packed.stored, element), packed.stored,
                            packed.panel_stride};
    if (!widens_) return stored;
    engine_.widen(stored, depth, divide_up(columns, engine_.panel),
                  reinterpret_cast<float*>(block_.get()));
    return {block_.get(), DType::f32, padded};
  }
  void finish_all(std::int64_t rows, std::int64_t columns, const Finish& finish) {
    for (std::int64_t j = 0; j < columns; j += kMostColumns) {
      engine_.finish(c_ + j, c_stride_, rows, std::min(kMostColumns, columns - j), finish.at(0, j));
    }
  }

  const Product& p_;
  const GemmEngine& engine_;
  const Left& left_;
  std::int64_t c_stride_;
  float* c_;
  bool widens_;
  DType block_dtype_ = DType::f32;
  Scratch<std::byte> block_;
};

// AMX configures its tiles around a run of products.
class Running {
 public:
  explicit Running(const AttentionEngine* engine) : engine_(engine) {
    if (engine_ != nullptr && engine_->begin != nullptr) engine_->begin();
  }
  ~Running() {
    if (engine_ != nullptr && engine_->end != nullptr) engine_->end();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  const AttentionEngine* engine_;
};

// How much of A is packed at once.
struct Pieces {
  std::int64_t rows, depth;
};

Pieces make_pieces(const Product& p) {
  constexpr std::int64_t kManyRows = 384, kFewRows = 192;
  const std::int64_t blocks = std::max<std::int64_t>(1, divide_up(p.k, p.engine.depth_block));
  const std::int64_t block_bytes = bytes_of(p.engine.operand, p.engine.left_stride);  // of a row
  const std::int64_t most = kLeftBytes / (blocks * block_bytes) / 96 * 96;
  const auto rows_of = [&](std::int64_t limit) {
    return round_up(divide_up(p.m, divide_up(p.m, limit)), 96);
  };
  // Every piece of rows packs B anew where it is not packed: few rows are not worth that.
  const std::int64_t fewest = p.packed == nullptr ? kManyRows : kFewRows;
  if (p.m <= 16 || most >= std::min(p.m, fewest)) {
    return {rows_of(std::max(most, fewest)), blocks * p.engine.depth_block};
  }
  // Rows too long to be packed whole. Sums of all columns wait for the next stretch.
  const std::int64_t rows = rows_of(p.n * kManyRows <= kSums ? kManyRows : kFewRows);
  const std::int64_t at_once = std::max<std::int64_t>(1, kLeftBytes / (rows * block_bytes));
  return {rows, at_once * p.engine.depth_block};
}

void multiply_rows(const Product& p, std::int64_t first, std::int64_t rows, std::int64_t depth) {
  const Plan plan = make_plan(p, rows);
  const std::int64_t tasks = plan.across * plan.along, size = sums_size(p, plan, rows);
  const bool is_whole = p.k <= depth;
  const Scratch<float> sums(is_whole ? 0 : tasks * size);
  for (std::int64_t k = 0; k == 0 || k < p.k; k += depth) {
    const Left left(p, first, rows, {k, std::min(p.k, k + depth)});
    parallel_for(tasks, [&](std::int64_t task) {
      const Scratch<float> own(is_whole ? size : 0);
      Worker worker(p, left, plan, rows, is_whole ? own.get() : sums.get() + task * size);
      const Running running(p.engine.native);
      const std::int64_t row = task / plan.across * plan.rows;
      const std::int64_t column = task % plan.across * plan.columns * plan.steps;
      const std::int64_t end = std::min(p.n, column + plan.columns * plan.steps);
      for (std::int64_t j = column; j < end; j += plan.columns) {
        const std::int64_t columns = std::min(plan.columns, end - j);
        if (plan.streams) {
          worker.run_streams(rows, first, j, columns);
        } else {
          worker.run(row, std::min(plan.rows, rows - row), first + row, j, columns);
        }
      }
    });
  }
}

}  // namespace

void multiply(const Product& p) {
  if (p.m == 0 || p.n == 0) return;
  const Pieces pieces = make_pieces(p);
  for (std::int64_t row = 0; row < p.m; row += pieces.rows) {
    multiply_rows(p, row, std::min(pieces.rows, p.m - row), pieces.depth);
  }
}

}  // namespace qkv::cpu

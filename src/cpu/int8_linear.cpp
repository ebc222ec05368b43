#include "cpu/int8_linear.h"

#include <algorithm>
#include <cmath>

#include "core/quantized_group.h"
#include "core/threads.h"
#include "cpu/int8_engine.h"
#include "cpu/int8_rows.h"
#include "cpu/scratch.h"
#include "qkv/threads.h"

namespace qkv::cpu {
namespace {

constexpr std::int64_t kFewRows = 16;           // up to these, the weight passes once
constexpr std::int64_t kMostRows = 256;         // of a task: they stay in the second-level cache
constexpr std::int64_t kTaskBytes = 64 << 10;   // of a weight worth a task, when it passes once
constexpr double kTaskWork = 1 << 19;           // products worth a task, when there are many rows
constexpr std::int64_t kRoundAlone = 16 << 10;  // elements one thread rounds as soon
constexpr std::int64_t kMostTile = 64;          // rows and columns of any engine's product

std::int64_t divide_up(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

// A weight in the panels of an engine: that of the target in use when it was packed.
struct Int8Packed final : Packed {
  const Int8Engine* engine = nullptr;
  GemmEngine finish{};  // what follows a product does not depend on what it was made of
  Int8Depth size{};
  bool spread = false;  // its inputs were, and so are the rows it is multiplied with
  std::int64_t panel_bytes = 0;
  Tensor bytes;  // u8 [panels][panel_bytes]
  Tensor scale;  // f32 [panels][groups][panel]
};

Int8Depth depth_of(std::int64_t inputs, std::int64_t group) {
  if (group >= inputs) {
    const std::int64_t depth = round_up(inputs, 64);
    return {depth, depth, 1};
  }
  return {round_up(inputs, std::min<std::int64_t>(group, 64)), group, divide_up(inputs, group)};
}

// x as the engine reads it.
class Left {
 public:
  Left(const LinearProblem& problem, const Int8Packed& weight)
      : size_(weight.size),
        spread_(weight.spread),
        arranged_(weight.engine->arrange != nullptr && problem.x.size(0) > 1),
        stride_(size_.depth + 64),  // a little more than the depth, against aliasing
        data_(round_up(problem.x.size(0), weight.engine->row_multiple) * stride_),
        scale_(problem.x.size(0) * size_.groups),
        sums_(problem.x.size(0) * size_.groups) {
    const std::int64_t rows = problem.x.size(0), inputs = problem.x.size(1);
    const Rows x{static_cast<std::byte*>(problem.x.raw()), problem.x.dtype(), inputs, 1};
    const std::int64_t piece = rows * inputs <= kRoundAlone ? rows : 16;
    parallel_for(divide_up(rows, piece), [&](std::int64_t task) {
      const std::int64_t begin = task * piece, end = std::min(rows, begin + piece);
      round_rows_to_int8(x.from(begin), end - begin, inputs, at(begin));
      for (std::int64_t r = begin; arranged_ && r < end; r += weight.engine->row_multiple) {
        weight.engine->arrange(data_.get() + r * stride_, stride_, size_.depth);
      }
    });
  }

  bool arranged() const { return arranged_; }
  Int8Rows at(std::int64_t row) const {
    return {data_.get() + row * stride_,      stride_, scale_.get() + row * size_.groups,
            sums_.get() + row * size_.groups, size_,   spread_};
  }

 private:
  Int8Depth size_;
  bool spread_;
  bool arranged_;
  std::int64_t stride_;
  Scratch<std::int8_t> data_;
  Scratch<float> scale_;
  Scratch<std::int32_t> sums_;
};

// Which rows and columns make a task.
struct Plan {
  std::int64_t rows, columns;
};

Plan make_plan(const Int8Packed& weight, std::int64_t rows) {
  const Int8Engine& engine = *weight.engine;
  const std::int64_t threads = num_threads(), n = weight.outputs;
  if (rows <= kFewRows) {
    const std::int64_t wanted =
        threads == 1 ? 1 : std::min(4 * threads, 1 + n * weight.size.depth / kTaskBytes);
    return {rows, round_up(divide_up(n, wanted), engine.stream_columns)};
  }
  const double work =
      static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(weight.size.depth);
  const std::int64_t wanted =
      threads == 1 ? 1 : std::min<std::int64_t>(4 * threads, 1 + std::llround(work / kTaskWork));
  const std::int64_t least = rows <= kFewRows ? engine.stream_columns : engine.tile_columns;
  std::int64_t along = divide_up(rows, kMostRows), across = 1;
  while (along * across < wanted && n > across * 2 * least) ++across;
  while (along * across < wanted && rows > along * 2 * engine.tile_rows) ++along;
  return {round_up(divide_up(rows, along), engine.tile_rows),
          round_up(divide_up(n, across), least)};
}

class Task {
 public:
  Task(const LinearProblem& problem, const Int8Packed& weight, const Left& left)
      : problem_(problem), weight_(weight), left_(left) {
    if (weight.engine->begin != nullptr) weight.engine->begin(weight.size);
  }
  ~Task() {
    if (weight_.engine->end != nullptr) weight_.engine->end();
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // A strip of columns stays in the first-level cache while the rows pass.
  void run(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    const Int8Engine& engine = *weight_.engine;
    const std::int64_t strip = rows == 1          ? engine.single_columns
                               : rows <= kFewRows ? engine.stream_columns
                                                  : engine.tile_columns;
    for (std::int64_t j = column; j < column + columns; j += strip) {
      for (std::int64_t i = row; i < row + rows; i += engine.tile_rows) {
        multiply(i, std::min(engine.tile_rows, row + rows - i), j,
                 std::min(strip, column + columns - j));
      }
    }
  }

 private:
  void multiply(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    const Int8Engine& engine = *weight_.engine;
    const Int8Rows a = left_.at(row);
    const std::int64_t panel = column / engine.panel;
    const auto* b = static_cast<const std::byte*>(weight_.bytes.raw());
    engine.multiply({.a = a.data,
                     .a_stride = a.stride,
                     .a_scale = a.scale,
                     .a_sums = a.sums,
                     .b = b + panel * weight_.panel_bytes,
                     .panel_bytes = weight_.panel_bytes,
                     .scale = weight_.scale.data<float>() + column * weight_.size.groups,
                     .c = c_,
                     .c_stride = kMostTile,
                     .rows = rows,
                     .columns = round_up(columns, engine.panel),
                     .size = weight_.size,
                     .arranged = left_.arranged()});
    const Tensor& y = problem_.y;
    Finish finish{
        {}, problem_.activation, {static_cast<std::byte*>(y.raw()), y.dtype(), y.size(1), 1}};
    if (problem_.bias.defined()) {
      finish.bias = {static_cast<std::byte*>(problem_.bias.raw()), problem_.bias.dtype(), 0, 1};
    }
    for (std::int64_t j = 0; j < columns; j += kMostColumns) {
      weight_.finish.finish(c_ + j, kMostTile, rows, std::min(kMostColumns, columns - j),
                            finish.at(row, column + j));
    }
  }

  const LinearProblem& problem_;
  const Int8Packed& weight_;
  const Left& left_;
  static_assert(kMostSingleColumns <= kMostTile * kMostTile);
  alignas(64) float c_[kMostTile * kMostTile];
};

}  // namespace

std::shared_ptr<const Packed> pack_int8(const Int8Weight& of) {
  const auto& [weight, scale, spread] = of;
  auto packed = std::make_shared<Int8Packed>();
  const std::int64_t n = weight.size(0), k = weight.size(1);
  packed->outputs = n;
  packed->inputs = k;
  packed->dtype = DType::i8;
  packed->device = weight.device();
  packed->engine = &int8_engine();
  packed->spread = spread;
  packed->finish = gemm_engine(DType::f32);
  packed->size = depth_of(k, quantized_group(k, scale.size(1)));
  const Int8Engine& engine = *packed->engine;
  const std::int64_t panels = divide_up(n, engine.panel), groups = packed->size.groups;
  packed->panel_bytes = packed->size.depth * engine.panel;
  packed->bytes = Tensor::empty({panels * packed->panel_bytes}, {DType::u8});
  packed->scale = Tensor::zeros({panels * groups * engine.panel});
  parallel_for(panels, [&](std::int64_t panel) {
    const std::int64_t first = panel * engine.panel, columns = std::min(engine.panel, n - first);
    std::byte* from = static_cast<std::byte*>(weight.raw()) + first * weight.stride(0);
    engine.pack({from, DType::i8, weight.stride(1), weight.stride(0)}, k, columns, packed->size,
                static_cast<std::byte*>(packed->bytes.raw()) + panel * packed->panel_bytes);
    float* to = packed->scale.data<float>() + panel * groups * engine.panel;
    for (std::int64_t j = 0; j < columns; ++j) {
      const float* row = scale.data<float>() + (first + j) * scale.stride(0);
      for (std::int64_t g = 0; g < groups; ++g) {
        to[g * engine.panel + j] = row[g * scale.stride(1)];
      }
    }
  });
  return packed;
}

void linear_int8(const LinearProblem& problem) {
  const auto& weight = static_cast<const Int8Packed&>(*problem.weight);
  const std::int64_t rows = problem.x.size(0), n = weight.outputs;
  const Left left(problem, weight);
  const Plan plan = make_plan(weight, rows);
  const std::int64_t across = divide_up(n, plan.columns), along = divide_up(rows, plan.rows);
  parallel_for(across * along, [&](std::int64_t index) {
    const std::int64_t row = index / across * plan.rows, column = index % across * plan.columns;
    Task(problem, weight, left)
        .run(row, std::min(plan.rows, rows - row), column, std::min(plan.columns, n - column));
  });
}

}  // namespace qkv::cpu

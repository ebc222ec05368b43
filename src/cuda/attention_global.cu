// With n global positions at the front, a pair is of one of three kinds:
//   near      rows and keys from n on: a window
//   columns   rows from n on, the n global keys: all of them
//   rows      the n global rows, all keys
// Each is a call without global positions. A row from n on is a mean of what the first two give it,
// weighted by their sums of exponentials. Backward needs no such mean: with the lse of a whole row,
// each part computes its own share of the gradients.
#include "cuda/attention_global.h"

#include "cuda/attention_statistics.h"
#include "cuda/elements.cuh"

namespace qkv::cuda {
namespace {

enum class Part { near, columns, rows };

// The sequences of one part, as rows of the whole tensors.
AttentionProblem part_of(const AttentionProblem& whole, Part part) {
  AttentionProblem p = whole;
  const std::int64_t n = whole.global_first;
  p.global_first = 0;
  if (part != Part::near) p.left = p.right = -1;
  if (part == Part::columns) p.causal = false;  // keys before all rows
  for (AttentionSequence& s : p.sequences) {
    const std::int64_t first = std::min(n, s.k_rows);
    if (part == Part::rows) {
      s.q_rows = first;
      s.q_seeing = std::min(first, s.q_seeing);
      continue;
    }
    s.q_start += first;
    s.q_rows -= first;
    s.q_seeing = std::max<std::int64_t>(0, s.q_seeing - first);
    if (part == Part::near) {
      s.k_start += first;
      s.k_rows -= first;
      s.k_visible = std::max<std::int64_t>(0, s.k_visible - first);
    } else {
      s.k_rows = first;
      s.k_visible = std::min(first, s.k_visible);
    }
  }
  return p;
}

std::string why_not_either(const AttentionProblem& p) {
  if (p.global_positions.defined()) return "global positions are anywhere";
  if (p.global_first == 0) return "there are no global positions";
  if (p.bias.defined() || p.has_diagonal_bias()) return "there is a bias";
  if (p.sinks.defined()) return "there are sinks";
  if (p.dropout > 0) return "there is dropout";
  if (p.allowed.defined()) return "there is a mask of pairs";
  for (const AttentionSequence& s : p.sequences) {
    if (s.q_rows != s.k_rows || s.offset != 0) return "queries do not stand at their keys";
  }
  return "";
}

// Elements [batch, head, row, column] of several tensors of one shape.
template <int N>
struct Tensors {
  void* data[N];
  std::int64_t strides[N][4];
  std::int64_t heads = 0, rows = 0, columns = 0, count = 0;

  template <class... T>
  explicit Tensors(const T&... x) : data{x.raw()...} {
    int n = 0;
    const auto take = [&](const Tensor& tensor) {
      for (int axis = 0; axis < 4; ++axis) strides[n][axis] = tensor.stride(axis);
      heads = tensor.size(1), rows = tensor.size(2), columns = tensor.size(3);
      count = tensor.numel();
      ++n;
    };
    (take(x), ...);
  }
  // Whether `each` neighbours of a row can be read at a time.
  bool come_in(int each, std::size_t bytes) const {
    bool fits = columns % each == 0;
    for (int n = 0; n < N; ++n) {
      fits = fits && strides[n][3] == 1 && reinterpret_cast<std::uintptr_t>(data[n]) % bytes == 0;
      for (int axis = 0; axis < 3; ++axis) fits = fits && strides[n][axis] % each == 0;
    }
    return fits;
  }
};

template <class T, int kEach>
struct alignas(sizeof(T) * kEach) Neighbours {
  T values[kEach];
};

// Neighbours `index` of all, by row.
template <class T, int kEach, int N>
struct Place {
  std::int64_t pair, row;  // batch and head in one number
  Neighbours<T, kEach>* at[N];

  __device__ Place(const Tensors<N>& x, std::int64_t index) {
    const std::int64_t width = x.columns / kEach, line = index / width;
    pair = line / x.rows;
    row = line - pair * x.rows;
    const std::int64_t batch = pair / x.heads, head = pair - batch * x.heads;
    for (int n = 0; n < N; ++n) {
      T* data = static_cast<T*>(x.data[n]) + batch * x.strides[n][0] + head * x.strides[n][1] +
                row * x.strides[n][2] + (index - line * width) * kEach * x.strides[n][3];
      at[n] = reinterpret_cast<Neighbours<T, kEach>*>(data);
    }
  }
};

// Calls f with kEach and what a launch over all elements needs.
template <class T, int N, class F>
void for_neighbours(const Tensors<N>& x, F&& f) {
  constexpr int kMost = 16 / sizeof(T);
  if (x.come_in(kMost, 16)) {
    f.template operator()<kMost>(blocks_for(x.count / kMost));
  } else {
    f.template operator()<1>(blocks_for(x.count));
  }
}

__device__ std::int64_t first_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::int64_t index_step() { return std::int64_t{gridDim.x} * blockDim.x; }

// x[0] becomes the mean of x[0] and x[1], in rows from `first` on.
template <class T, int kEach>
__global__ void join_rows_kernel(Tensors<2> x, std::int64_t first, const float* near_lse,
                                 const float* columns_lse) {
  for (std::int64_t i = first_index(); i < x.count / kEach; i += index_step()) {
    const Place<T, kEach, 2> place(x, i);
    if (place.row < first) continue;
    const std::int64_t line = place.pair * x.rows + place.row;
    const float a = near_lse[line], b = columns_lse[line];
    if (b == -INFINITY) continue;
    const float share = 1 / (1 + expf(b - a));  // of the first; a may be -inf
    Neighbours<T, kEach> mine = *place.at[0];
    const Neighbours<T, kEach> others = *place.at[1];
    for (int k = 0; k < kEach; ++k) {
      const float other = to_float(others.values[k]);
      mine.values[k] = from_float<T>(
          share == 0 ? other : share * to_float(mine.values[k]) + (1 - share) * other);
    }
    *place.at[0] = mine;
  }
}

// After that: the lse of both.
__global__ void join_lse_kernel(float* near_lse, const float* columns_lse, std::int64_t count,
                                std::int64_t rows, std::int64_t first) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const float a = near_lse[i], b = columns_lse[i];
    if (i % rows < first || b == -INFINITY) continue;
    const float top = fmaxf(a, b), rest = fminf(a, b);
    near_lse[i] = isnan(a) || isnan(b) ? NAN : top + log1pf(expf(rest - top));
  }
}

// x[0] += x[1] in rows from `first` on; before, it becomes x[2], or x[1] + x[2].
template <class T, int kEach>
__global__ void add_rows_kernel(Tensors<3> x, std::int64_t first, bool adds_before) {
  for (std::int64_t i = first_index(); i < x.count / kEach; i += index_step()) {
    const Place<T, kEach, 3> place(x, i);
    const bool is_before = place.row < first;
    Neighbours<T, kEach> sum = is_before ? *place.at[2] : *place.at[0];
    if (!is_before || adds_before) {
      const Neighbours<T, kEach> more = *place.at[1];
      for (int k = 0; k < kEach; ++k) {
        sum.values[k] = from_float<T>(to_float(sum.values[k]) + to_float(more.values[k]));
      }
    }
    *place.at[0] = sum;
  }
}

Tensor like(const Tensor& x) { return Tensor::empty(x.shape(), {x.dtype(), x.device()}); }

}  // namespace

std::string why_not_split(const AttentionProblem& p, const AttentionResults& results) {
  if (watches_scores(results.statistics) || results.statistics.received.defined()) {
    return "statistics are asked for";
  }
  return why_not_either(p);
}

std::string why_not_split(const AttentionProblem& p, const AttentionBackward& t) {
  return t.dentropy.defined() ? "there is a gradient of the entropy" : why_not_either(p);
}

void split_forward(CudaBackend& backend, const AttentionProblem& p,
                   const AttentionResults& results) {
  AttentionResults columns;
  columns.out = like(results.out);
  columns.lse = like(results.lse);
  backend.attention_forward(part_of(p, Part::near), results);
  backend.attention_forward(part_of(p, Part::rows), results);
  backend.attention_forward(part_of(p, Part::columns), columns);
  const cudaStream_t stream = backend.stream();
  auto* near_lse = pointer<float>(results.lse);
  const auto* columns_lse = pointer<const float>(columns.lse);
  const Tensors<2> both(results.out, columns.out);
  dispatch_device(p.q.dtype(), [&]<class T>() {
    for_neighbours<T>(both, [&]<int kEach>(unsigned blocks) {
      join_rows_kernel<T, kEach>
          <<<blocks, kThreads, 0, stream>>>(both, p.global_first, near_lse, columns_lse);
    });
  });
  join_lse_kernel<<<blocks_for(results.lse.numel()), kThreads, 0, stream>>>(
      near_lse, columns_lse, results.lse.numel(), results.lse.size(2), p.global_first);
  check_launch("attention with global positions");
}

void split_backward(CudaBackend& backend, const AttentionProblem& p, const AttentionBackward& t) {
  AttentionBackward columns = t, rows = t;
  for (AttentionBackward* part : {&columns, &rows}) {
    part->dq = like(t.dq);
    part->dk = like(t.dk);
    part->dv = like(t.dv);
  }
  backend.attention_backward(part_of(p, Part::near), t);
  backend.attention_backward(part_of(p, Part::columns), columns);
  backend.attention_backward(part_of(p, Part::rows), rows);
  dispatch_device(p.q.dtype(), [&]<class T>() {
    const auto add = [&](const Tensors<3>& x, bool adds_before) {
      for_neighbours<T>(x, [&]<int kEach>(unsigned blocks) {
        add_rows_kernel<T, kEach>
            <<<blocks, kThreads, 0, backend.stream()>>>(x, p.global_first, adds_before);
      });
    };
    add(Tensors<3>(t.dq, columns.dq, rows.dq), false);
    add(Tensors<3>(t.dk, rows.dk, columns.dk), true);
    add(Tensors<3>(t.dv, rows.dv, columns.dv), true);
  });
  check_launch("attention with global positions");
}

}  // namespace qkv::cuda

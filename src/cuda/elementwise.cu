// Operators that work on elements by themselves: binary, scale, activations, gates, dropout.
#include "cuda/activation.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/dropping.cuh"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

// y[i] = f(x[i]...) over runs of neighbours: 16 bytes at a time where everything is aligned.
template <class T, class F>
__global__ void map_kernel(F f, T* y, std::int64_t count, bool by_pack) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  constexpr int kEach = Pack16<T>::kCount;
  const std::int64_t first = thread * kEach;
  if (by_pack && first + kEach <= count) {
    Pack16<T> out;
    f.pack(first, out);
    *reinterpret_cast<Pack16<T>*>(y + first) = out;
    return;
  }
  for (std::int64_t i = first; i < min(count, first + kEach); ++i) y[i] = f.one(i);
}
template <class T, class F>
void map(const F& f, T* y, std::int64_t count, bool is_packed, cudaStream_t stream) {
  const std::int64_t per_block = std::int64_t{kThreads} * Pack16<T>::kCount;
  map_kernel<<<blocks_for(count, per_block), kThreads, 0, stream>>>(f, y, count,
                                                                    is_packed && is_aligned(y));
}
template <class T>
__device__ Pack16<T> load_pack(const T* x, std::int64_t at) {
  return *reinterpret_cast<const Pack16<T>*>(x + at);
}

template <BinaryOp kOp>
__device__ float combine(float a, float b) {
  if constexpr (kOp == BinaryOp::add) return a + b;
  if constexpr (kOp == BinaryOp::subtract) return a - b;
  return a * b;
}

template <BinaryOp kOp, class T, class B>
__global__ void binary_kernel(const T* a, const B* b, T* y, Walk<3> walk, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::int64_t at[3];
    walk.offsets(i, at);
    y[at[2]] = from_float<T>(combine<kOp>(to_float(a[at[0]]), to_float(b[at[1]])));
  }
}
template <BinaryOp kOp, class T, class B>
struct FlatBinary {
  const T* a;
  const B* b;  // repeated after `period` elements, a multiple of what one access holds
  std::int64_t period;
  __device__ T one(std::int64_t i) const {
    return from_float<T>(combine<kOp>(to_float(a[i]), to_float(b[i % period])));
  }
  __device__ void pack(std::int64_t i, Pack16<T>& y) const {
    constexpr int kCount = Pack16<T>::kCount;
    struct alignas(kCount * sizeof(B) < 16 ? kCount * sizeof(B) : 16) Others {
      B values[kCount];
    };
    const Pack16<T> u = load_pack(a, i);
    const Others v = *reinterpret_cast<const Others*>(b + (i < period ? i : i % period));
    for (int k = 0; k < kCount; ++k) {
      y.values[k] = from_float<T>(combine<kOp>(to_float(u.values[k]), to_float(v.values[k])));
    }
  }
};

// After how many elements of y (in order) those of b come again; 0 when they do not so simply: b
// may be spread along the first axes.
inline std::int64_t period_of(const Tensor& b, const Shape& shape) {
  std::int64_t period = 1;
  int axis = shape.rank() - 1;
  for (; axis >= 0 && (shape[axis] == 1 || b.stride(axis) == period); --axis) period *= shape[axis];
  for (; axis >= 0; --axis) {
    if (shape[axis] != 1 && b.stride(axis) != 0) return 0;
  }
  return period;
}

template <BinaryOp kOp>
void run_binary(const Tensor& a, const Tensor& b, Tensor& y, cudaStream_t stream) {
  const std::int64_t count = y.numel();
  const Walk<3> walk = make_walk<3>(y.shape(), {&a, &b, &y});
  dispatch_device(a.dtype(), [&]<class T>() {
    const auto* x = pointer<const T>(a);
    dispatch_device(b.dtype(), [&]<class B>() {
      const std::int64_t period = period_of(b, y.shape());
      const bool in_order = make_walk<2>(y.shape(), {&a, &y}).is_flat();
      if (in_order && (period == count || (period > 1 && period % Pack16<T>::kCount == 0))) {
        const FlatBinary<kOp, T, B> f{x, pointer<const B>(b), period};
        return map(f, pointer<T>(y), count, is_aligned(f.a) && is_aligned(f.b), stream);
      }
      binary_kernel<kOp><<<blocks_for(count), kThreads, 0, stream>>>(x, pointer<const B>(b),
                                                                     pointer<T>(y), walk, count);
    });
  });
}

template <class T>
struct FlatScale {
  const T* x;
  float factor;
  __device__ T one(std::int64_t i) const { return from_float<T>(to_float(x[i]) * factor); }
  __device__ void pack(std::int64_t i, Pack16<T>& y) const {
    const Pack16<T> u = load_pack(x, i);
    for (int k = 0; k < Pack16<T>::kCount; ++k) {
      y.values[k] = from_float<T>(to_float(u.values[k]) * factor);
    }
  }
};
template <class T>
__global__ void scale_kernel(const T* x, float factor, T* y, Walk<2> walk, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::int64_t at[2];
    walk.offsets(i, at);
    y[at[1]] = from_float<T>(to_float(x[at[0]]) * factor);
  }
}

template <Activation kFunction, class T>
struct Activate {
  const T* x;
  __device__ T one(std::int64_t i) const { return from_float<T>(apply<kFunction>(to_float(x[i]))); }
  __device__ void pack(std::int64_t i, Pack16<T>& y) const {
    const Pack16<T> u = load_pack(x, i);
    for (int k = 0; k < Pack16<T>::kCount; ++k) {
      y.values[k] = from_float<T>(apply<kFunction>(to_float(u.values[k])));
    }
  }
};
template <Activation kFunction, class T>
struct ActivateBackward {
  const T *x, *dy;
  __device__ static T gradient(T x, T dy) {
    return from_float<T>(apply_derivative<kFunction>(to_float(x)) * to_float(dy));
  }
  __device__ T one(std::int64_t i) const { return gradient(x[i], dy[i]); }
  __device__ void pack(std::int64_t i, Pack16<T>& dx) const {
    const Pack16<T> u = load_pack(x, i), v = load_pack(dy, i);
    for (int k = 0; k < Pack16<T>::kCount; ++k) dx.values[k] = gradient(u.values[k], v.values[k]);
  }
};

template <Activation kFunction, class T>
__global__ void gated_kernel(const T* gate, const T* up, T* y, Walk<3> walk, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::int64_t at[3];
    walk.offsets(i, at);
    y[at[2]] = from_float<T>(apply<kFunction>(to_float(gate[at[0]])) * to_float(up[at[1]]));
  }
}
template <Activation kFunction, class T>
__global__ void gated_backward_kernel(const T* gate, const T* up, const T* dy, T* dgate, T* dup,
                                      Walk<5> walk, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::int64_t at[5];
    walk.offsets(i, at);
    const float g = to_float(gate[at[0]]), u = to_float(up[at[1]]), d = to_float(dy[at[2]]);
    dgate[at[3]] = from_float<T>(apply_derivative<kFunction>(g) * u * d);
    dup[at[4]] = from_float<T>(apply<kFunction>(g) * d);
  }
}

template <class T>
struct Drop {
  const T* x;
  Dropping dropping;
  __device__ T one(std::int64_t i) const {
    return from_float<T>(dropped(to_float(x[i]), dropping.factor_of(i)));
  }
  __device__ void pack(std::int64_t i, Pack16<T>& y) const {
    const Pack16<T> u = load_pack(x, i);
    float factors[Pack16<T>::kCount];
    dropping.factors(i, factors);
    for (int k = 0; k < Pack16<T>::kCount; ++k) {
      y.values[k] = from_float<T>(dropped(to_float(u.values[k]), factors[k]));
    }
  }
};

}  // namespace
}  // namespace cuda

void CudaBackend::binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) {
  if (y.numel() == 0) return;
  switch (op) {
    case BinaryOp::add: cuda::run_binary<BinaryOp::add>(a, b, y, stream()); break;
    case BinaryOp::subtract: cuda::run_binary<BinaryOp::subtract>(a, b, y, stream()); break;
    case BinaryOp::mul: cuda::run_binary<BinaryOp::mul>(a, b, y, stream()); break;
  }
  check_launch("binary");
}

void CudaBackend::scale(const Tensor& x, double factor, Tensor& y) {
  if (y.numel() == 0) return;
  const auto walk = cuda::make_walk<2>(y.shape(), {&x, &y});
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    if (walk.is_flat()) {
      const cuda::FlatScale<T> job{cuda::pointer<const T>(x), static_cast<float>(factor)};
      return cuda::map(job, cuda::pointer<T>(y), y.numel(), cuda::is_aligned(job.x), stream());
    }
    cuda::scale_kernel<<<cuda::blocks_for(y.numel()), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const T>(x), static_cast<float>(factor), cuda::pointer<T>(y), walk,
        y.numel());
  });
  check_launch("scale");
}

void CudaBackend::activate(Activation f, const Tensor& x, Tensor& y) {
  if (y.numel() == 0) return;
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    cuda::dispatch_activation(f, [&]<Activation kFunction>() {
      const cuda::Activate<kFunction, T> job{cuda::pointer<const T>(x)};
      cuda::map(job, cuda::pointer<T>(y), y.numel(), cuda::is_aligned(job.x), stream());
    });
  });
  check_launch("activation");
}

void CudaBackend::activate_backward(Activation f, const Tensor& x, const Tensor& dy, Tensor& dx) {
  if (dx.numel() == 0) return;
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    cuda::dispatch_activation(f, [&]<Activation kFunction>() {
      const cuda::ActivateBackward<kFunction, T> job{cuda::pointer<const T>(x),
                                                     cuda::pointer<const T>(dy)};
      cuda::map(job, cuda::pointer<T>(dx), dx.numel(),
                cuda::is_aligned(job.x) && cuda::is_aligned(job.dy), stream());
    });
  });
  check_launch("activation backward");
}

void CudaBackend::gated(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) {
  if (y.numel() == 0) return;
  const auto walk = cuda::make_walk<3>(y.shape(), {&gate, &up, &y});
  cuda::dispatch_device(y.dtype(), [&]<class T>() {
    cuda::dispatch_activation(f, [&]<Activation kFunction>() {
      cuda::gated_kernel<kFunction><<<cuda::blocks_for(y.numel()), cuda::kThreads, 0, stream()>>>(
          cuda::pointer<const T>(gate), cuda::pointer<const T>(up), cuda::pointer<T>(y), walk,
          y.numel());
    });
  });
  check_launch("gated");
}

void CudaBackend::gated_backward(Activation f, const Tensor& gate, const Tensor& up,
                                 const Tensor& dy, Tensor& dgate, Tensor& dup) {
  if (dy.numel() == 0) return;
  const auto walk = cuda::make_walk<5>(dy.shape(), {&gate, &up, &dy, &dgate, &dup});
  cuda::dispatch_device(dy.dtype(), [&]<class T>() {
    cuda::dispatch_activation(f, [&]<Activation kFunction>() {
      cuda::gated_backward_kernel<kFunction>
          <<<cuda::blocks_for(dy.numel()), cuda::kThreads, 0, stream()>>>(
              cuda::pointer<const T>(gate), cuda::pointer<const T>(up), cuda::pointer<const T>(dy),
              cuda::pointer<T>(dgate), cuda::pointer<T>(dup), walk, dy.numel());
    });
  });
  check_launch("gated backward");
}

void CudaBackend::dropout(const Tensor& x, double p, std::uint64_t seed, Tensor& y) {
  if (y.numel() == 0) return;
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    const cuda::Drop<T> job{cuda::pointer<const T>(x), cuda::Dropping(p, seed)};
    cuda::map(job, cuda::pointer<T>(y), y.numel(), cuda::is_aligned(job.x), stream());
  });
  check_launch("dropout");
}

}  // namespace qkv

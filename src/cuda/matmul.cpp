// Products through cuBLASLt. It thinks in columns: y = a b in rows is y^T = b^T a^T in columns, so
// b is its first operand and a its second, and nothing is moved.
#include "cuda/matmul.h"

#include <cublasLt.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "core/check.h"
#include "cuda/cuda_backend.h"

namespace qkv {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;

void check_blas(cublasStatus_t status) {
  check(status == CUBLAS_STATUS_SUCCESS, "matmul: cuBLAS says: {}",
        cublasLtGetStatusString(status));
}

cudaDataType_t blas_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// The weight as it is: cuBLASLt reads either order.
struct CudaPacked final : Packed {
  Tensor weight;  // [N, K]
};

// Descriptors of the library, released with their scope.
struct Operation {
  cublasLtMatmulDesc_t handle = nullptr;
  Operation() { check_blas(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F)); }
  ~Operation() { cublasLtMatmulDescDestroy(handle); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) {
    check_blas(cublasLtMatmulDescSetAttribute(handle, what, &value, sizeof value));
  }
};
struct Matrix {
  cublasLtMatrixLayout_t handle = nullptr;
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t leading,
         std::int64_t count, std::int64_t apart) {
    check_blas(cublasLtMatrixLayoutCreate(&handle, blas_type(dtype),
                                          static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(columns), leading));
    const auto batch = static_cast<std::int32_t>(count);
    check_blas(cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof batch));
    check_blas(cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &apart, sizeof apart));
  }
  ~Matrix() { cublasLtMatrixLayoutDestroy(handle); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
};
struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  Preference() { check_blas(cublasLtMatmulPreferenceCreate(&handle)); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t what, const T& value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(handle, what, &value, sizeof value));
  }
};

// An operand [B, R, C] as the library wants it: one of the last two axes has stride 1.
struct Operand {
  Tensor values;
  bool is_transposed = false;  // the rows are the ones side by side
  std::int64_t leading = 1;

  explicit Operand(const Tensor& x) : values(x) {
    const auto fits = [](std::int64_t inner, std::int64_t outer, std::int64_t inner_size,
                         std::int64_t outer_size) {
      return (inner == 1 || inner_size == 1) && (outer >= inner_size || outer_size == 1);
    };
    const std::int64_t rows = x.size(1), columns = x.size(2);
    if (fits(x.stride(2), x.stride(1), columns, rows)) {
      leading = rows == 1 ? columns : x.stride(1);
    } else if (fits(x.stride(1), x.stride(2), rows, columns)) {
      is_transposed = true;
      leading = columns == 1 ? rows : x.stride(2);
    } else {
      values = Tensor::empty(x.shape(), {x.dtype(), x.device()});
      backend(x.device()).copy(x, values);
      leading = columns;
    }
  }
  std::int64_t apart() const { return values.size(0) > 1 ? values.stride(0) : 0; }
  Matrix layout() const {
    const std::int64_t rows = values.size(1), columns = values.size(2);
    return {values.dtype(),
            is_transposed ? rows : columns,
            is_transposed ? columns : rows,
            leading,
            values.size(0),
            apart()};
  }
};

std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256u;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

Tensor converted(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), {dtype, x.device()});
  backend(x.device()).copy(x, y);
  return y;
}

// In which dtype a and b are multiplied. A product of two f16 is exact in f32.
DType product_dtype(DType a, DType b) {
  if (b == DType::bf16) return DType::bf16;
  return a == DType::f16 && b == DType::f16 ? DType::f16 : DType::f32;
}

}  // namespace

struct CudaBackend::Blas {
  using Key = std::array<std::int64_t, 16>;

  cublasLtHandle_t handle = nullptr;
  Tensor workspace;
  std::mutex mutex;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;  // the library takes its time to choose one

  explicit Blas(Device device)
      : workspace(Tensor::empty({static_cast<std::int64_t>(kWorkspace)}, {DType::u8, device})) {
    check_blas(cublasLtCreate(&handle));
  }
  ~Blas() { cublasLtDestroy(handle); }
};

void CudaBackend::product(const MatmulProblem& p) {
  stream();
  if (!blas_) blas_ = std::make_shared<Blas>(device());
  Blas& blas = *blas_;
  const Operand a(p.a), b(p.b);
  const std::int64_t batch = p.y.size(0), rows = p.y.size(1), columns = p.y.size(2);
  const std::int64_t inner = p.a.size(2);

  Operation operation;
  operation.set(CUBLASLT_MATMUL_DESC_TRANSA, b.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  operation.set(CUBLASLT_MATMUL_DESC_TRANSB, a.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias.defined()) {
    operation.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.raw()));
  }
  const Matrix first = b.layout(), second = a.layout();
  const Matrix result(p.y.dtype(), columns, rows, columns, batch, rows * columns);

  const auto number = [](auto value) { return static_cast<std::int64_t>(value); };
  const std::uint32_t a_alignment = alignment_of(a.values.raw());
  const std::uint32_t b_alignment = alignment_of(b.values.raw());
  const std::uint32_t y_alignment = alignment_of(p.y.raw());
  const Blas::Key key{batch,
                      rows,
                      columns,
                      inner,
                      number(p.a.dtype()) * 16 + number(p.y.dtype()),
                      a.leading,
                      b.leading,
                      a.apart(),
                      b.apart(),
                      number(a.is_transposed) * 2 + number(b.is_transposed),
                      number(a_alignment),
                      number(b_alignment),
                      number(y_alignment),
                      number(p.bias.defined())};
  cublasLtMatmulAlgo_t algorithm;
  {
    const std::scoped_lock lock(blas.mutex);
    auto found = blas.algorithms.find(key);
    if (found == blas.algorithms.end()) {
      Preference preference;
      preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
      preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b_alignment);
      preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a_alignment);
      preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment);
      preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment);
      cublasLtMatmulHeuristicResult_t heuristic{};
      int count = 0;
      check_blas(cublasLtMatmulAlgoGetHeuristic(blas.handle, operation.handle, first.handle,
                                                second.handle, result.handle, result.handle,
                                                preference.handle, 1, &heuristic, &count));
      check(count > 0, "matmul: cuBLAS has no way to multiply {} {} by {} {}", p.a.dtype(),
            p.a.shape(), p.b.dtype(), p.b.shape());
      found = blas.algorithms.emplace(key, heuristic.algo).first;
    }
    algorithm = found->second;
  }
  const float one = 1, zero = 0;
  check_blas(cublasLtMatmul(blas.handle, operation.handle, &one, b.values.raw(), first.handle,
                            a.values.raw(), second.handle, &zero, p.y.raw(), result.handle,
                            p.y.raw(), result.handle, &algorithm, blas.workspace.raw(), kWorkspace,
                            stream()));
}

void CudaBackend::matmul(const MatmulProblem& p) {
  if (p.y.numel() == 0) return;
  const DType dtype = product_dtype(p.a.dtype(), p.b.dtype());
  const bool is_empty = p.a.size(2) == 0;  // a sum of nothing is zero
  // The library adds a bias of the result's own dtype; whatever else follows is a kernel's, which
  // gets the sums before they are rounded.
  const bool direct_result =
      p.y.dtype() == DType::f32 || (p.y.dtype() == dtype && dtype != DType::f32);
  const bool direct_bias = !p.bias.defined() || p.bias.dtype() == p.y.dtype();
  const bool direct = direct_result && direct_bias && p.activation == Activation::none && !is_empty;
  MatmulProblem plain = p;
  plain.a = converted(p.a, dtype);
  plain.b = converted(p.b, dtype);
  plain.activation = Activation::none;
  if (direct) return product(plain);
  plain.bias = {};
  if (p.y.dtype() != DType::f32) plain.y = Tensor::empty(p.y.shape(), {DType::f32, device()});
  if (is_empty) {
    fill(plain.y, 0);
  } else {
    product(plain);
  }
  Tensor y = p.y;
  cuda::finish_product(plain.y, p.bias, p.activation, y, stream());
}

std::shared_ptr<const Packed> CudaBackend::pack(const Tensor& weight) {
  auto packed = std::make_shared<CudaPacked>();
  packed->outputs = weight.size(0);
  packed->inputs = weight.size(1);
  packed->dtype = weight.dtype();
  packed->device = device();
  packed->weight = weight;
  return packed;
}

void CudaBackend::linear(const LinearProblem& p) {
  const Tensor& weight = static_cast<const CudaPacked*>(p.weight)->weight;
  const auto view = [](const Tensor& x, int first, int second) {
    const std::int64_t extents[] = {1, x.size(first), x.size(second)};
    const std::int64_t strides[] = {0, x.stride(first), x.stride(second)};
    return x.view(Shape(extents), strides, 0);
  };
  MatmulProblem product;
  product.a = view(p.x, 0, 1);
  product.b = view(weight, 1, 0);
  product.bias = p.bias;
  product.activation = p.activation;
  product.y = view(p.y, 0, 1);
  matmul(product);
}

}  // namespace qkv

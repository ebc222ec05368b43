// Products through cuBLASLt. It thinks in columns: y = a b in rows is y^T = b^T a^T in columns, so
// b is its first operand and a its second, and nothing is moved.
#include "cuda/matmul.h"

#include <cublasLt.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/check.h"
#include "cuda/cuda_backend.h"

namespace qkv {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;

void check_blas(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) fail<OutOfMemory>("matmul: cuBLAS is out of memory");
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
  // As if it had that many rows and columns.
  Matrix layout(std::int64_t rows, std::int64_t columns) const {
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

struct Alignments {
  std::uint32_t b = 1, a = 1, y = 1;  // in the library's order
};

struct CudaBackend::Blas {
  using Key = std::array<std::int64_t, 16>;

  cublasLtHandle_t handle = nullptr;
  Tensor workspace;
  std::mutex mutex;
  // The library takes its time to choose one. Absent: there is none.
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms;

  explicit Blas(Device device)
      : workspace(Tensor::empty({static_cast<std::int64_t>(kWorkspace)}, {DType::u8, device})) {
    check_blas(cublasLtCreate(&handle));
  }
  ~Blas() { cublasLtDestroy(handle); }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  std::optional<cublasLtMatmulAlgo_t> ask(const Operation& operation, const Matrix& first,
                                          const Matrix& second, const Matrix& result,
                                          const Alignments& at) const {
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, at.b);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, at.a);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, at.y);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, at.y);
    cublasLtMatmulHeuristicResult_t heuristic{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, operation.handle, first.handle, second.handle, result.handle, result.handle,
        preference.handle, 1, &heuristic, &count);
    const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                      status == CUBLAS_STATUS_INVALID_VALUE ||  // rows too far apart, rounded up
                      (status == CUBLAS_STATUS_SUCCESS && count == 0);
    if (none) return std::nullopt;
    check_blas(status);
    return heuristic.algo;
  }
  // The way to multiply under a key, found by `find` the first time; null where there is none.
  template <class F>
  const cublasLtMatmulAlgo_t* choose(const Key& key, F&& find) {
    const std::scoped_lock lock(mutex);
    auto found = algorithms.find(key);
    if (found == algorithms.end()) found = algorithms.emplace(key, find()).first;
    return found->second ? &*found->second : nullptr;  // entries of a map stay where they are
  }
};

namespace {

// What the library does to the sums before it rounds them.
struct Epilogue {
  cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;

  explicit Epilogue(const MatmulProblem& p) {
    const bool has_bias = p.bias.defined();
    if (has_bias) bias = p.bias.raw();
    if (p.activation == Activation::relu) {
      kind = has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    } else if (has_bias) {
      kind = CUBLASLT_EPILOGUE_BIAS;
    }
  }
  void set(Operation& operation) const {
    if (kind == CUBLASLT_EPILOGUE_DEFAULT) return;
    operation.set(CUBLASLT_MATMUL_DESC_EPILOGUE, kind);
    if (bias != nullptr) operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
};

// Whether that can be all there is to do. (The library's gelu is not as exact as its sums: 1e-4 off
// where the result is 6e-3, measured with cuBLAS 13.0.)
bool has_epilogue(const MatmulProblem& p, DType product) {
  const bool same = p.y.dtype() == product && product != DType::f32;
  const bool bias_fits = !p.bias.defined() || p.bias.dtype() == p.y.dtype();
  if (p.activation == Activation::none) return (same || p.y.dtype() == DType::f32) && bias_fits;
  if (!same || !bias_fits) return false;
  return p.activation == Activation::relu && !p.before.defined();
}

// Batches of text have any number of tokens. A way to multiply is chosen for a multiple of some
// number of them, so that few are asked for; it is the same whatever came before.
std::int64_t rounded(std::int64_t tokens) {
  constexpr std::int64_t kMany = 4096, kStep = 1024;
  return tokens < kMany ? tokens : (tokens + kStep - 1) / kStep * kStep;
}

}  // namespace

namespace {

Tensor part_of(const Tensor& x, int axis, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  std::vector<std::int64_t> strides;
  for (int i = 0; i < x.rank(); ++i) strides.push_back(x.stride(i));
  extents[axis] = end - begin;
  return x.view(Shape(extents), strides, begin * x.stride(axis));
}

// A product of 16-bit matrices is several times slower where a long axis that lies in memory side
// by side is no multiple of 8 (a vocabulary of 50257). So what is left over is done apart: along
// the inner axis first, where the larger part then adds to it before it rounds.
std::optional<std::pair<CudaBackend::Product, CudaBackend::Product>> aligned_parts(
    const CudaBackend::Product& p) {
  constexpr std::int64_t kLong = 1024, kMultiple = 8;
  const auto is_odd = [](std::int64_t n) { return n >= kLong && n % kMultiple != 0; };
  if (p.y.size(0) != 1 || p.a.dtype() == DType::f32) return std::nullopt;
  const Operand a(p.a), b(p.b);
  const std::int64_t rows = p.y.size(1), columns = p.y.size(2), inner = p.a.size(2);
  const auto whole = [](std::int64_t n) { return n / kMultiple * kMultiple; };
  std::pair<CudaBackend::Product, CudaBackend::Product> parts{p, p};
  auto& [first, second] = parts;
  if (is_odd(columns)) {
    const std::int64_t cut = whole(columns);
    first.b = part_of(p.b, 2, 0, cut);
    first.y = part_of(p.y, 2, 0, cut);
    second.b = part_of(p.b, 2, cut, columns);
    second.y = part_of(p.y, 2, cut, columns);
    if (p.bias.defined()) {
      first.bias = part_of(p.bias, 0, 0, cut);
      second.bias = part_of(p.bias, 0, cut, columns);
    }
  } else if (is_odd(rows) && a.is_transposed) {
    const std::int64_t cut = whole(rows);
    first.a = part_of(p.a, 1, 0, cut);
    first.y = part_of(p.y, 1, 0, cut);
    second.a = part_of(p.a, 1, cut, rows);
    second.y = part_of(p.y, 1, cut, rows);
  } else if (is_odd(inner) && !p.adds && (!a.is_transposed || b.is_transposed)) {
    const std::int64_t cut = whole(inner);
    first.a = part_of(p.a, 2, cut, inner);
    first.b = part_of(p.b, 1, cut, inner);
    first.bias = {};
    first.activation = Activation::none;
    second.a = part_of(p.a, 2, 0, cut);
    second.b = part_of(p.b, 1, 0, cut);
    second.adds = true;
  } else {
    return std::nullopt;
  }
  return parts;
}

}  // namespace

bool CudaBackend::product(const Product& p) {
  if (const auto parts = aligned_parts(p)) {
    return product(parts->first) && product(parts->second);
  }
  return product_of_all(p);
}

bool CudaBackend::product_of_all(const Product& p) {
  stream();
  const std::shared_ptr<Blas> shared = [&] {
    const std::scoped_lock lock(first_use_);
    if (!blas_) blas_ = std::make_shared<Blas>(device());
    return blas_;
  }();
  Blas& blas = *shared;
  const Operand a(p.a), b(p.b);
  const Epilogue epilogue(p);
  Operation operation;
  operation.set(CUBLASLT_MATMUL_DESC_TRANSA, b.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  operation.set(CUBLASLT_MATMUL_DESC_TRANSB, a.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  epilogue.set(operation);

  const std::int64_t batch = p.y.size(0), rows = p.y.size(1), columns = p.y.size(2);
  const std::int64_t inner = p.a.size(2), apart = rows > 1 ? p.y.stride(1) : columns;
  struct Layouts {
    Matrix first, second, result;
  };
  const auto layouts = [&](std::int64_t m, std::int64_t k) -> Layouts {
    return {b.layout(k, columns), a.layout(m, k),
            Matrix(p.y.dtype(), columns, m, apart, batch, rows * apart)};
  };
  const auto number = [](auto value) { return static_cast<std::int64_t>(value); };
  const Alignments alignments{alignment_of(b.values.raw()), alignment_of(a.values.raw()),
                              alignment_of(p.y.raw())};
  // By their rounded numbers first, then by the numbers themselves.
  const std::int64_t m = batch == 1 ? rounded(rows) : rows;
  const std::int64_t k = batch == 1 ? rounded(inner) : inner;
  for (const auto& [ask_m, ask_k] : {std::pair{m, k}, std::pair{rows, inner}}) {
    const Blas::Key key{batch,
                        ask_m,
                        columns,
                        ask_k,
                        number(p.a.dtype()) * 16 + number(p.y.dtype()),
                        a.leading,
                        b.leading,
                        a.apart(),
                        b.apart(),
                        number(a.is_transposed) * 2 + number(b.is_transposed),
                        number(alignments.a),
                        number(alignments.b),
                        number(alignments.y),
                        number(epilogue.kind) * 2 + number(p.adds),
                        apart};
    const cublasLtMatmulAlgo_t* algorithm = blas.choose(key, [&] {
      const Layouts asked = layouts(ask_m, ask_k);
      return blas.ask(operation, asked.first, asked.second, asked.result, alignments);
    });
    if (algorithm == nullptr) continue;
    const Layouts real = layouts(rows, inner);
    const float one = 1, kept = p.adds ? 1 : 0;
    const cublasStatus_t status = cublasLtMatmul(
        blas.handle, operation.handle, &one, b.values.raw(), real.first.handle, a.values.raw(),
        real.second.handle, &kept, p.y.raw(), real.result.handle, p.y.raw(), real.result.handle,
        algorithm, blas.workspace.raw(), kWorkspace, stream());
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    const bool unfit =
        status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
    if (!unfit) check_blas(status);
  }
  return false;
}

void CudaBackend::matmul(const MatmulProblem& p) {
  if (p.y.numel() == 0 || matmul_by_parts(p)) return;
  const DType dtype = product_dtype(p.a.dtype(), p.b.dtype());
  const bool is_empty = p.a.size(2) == 0;  // a sum of nothing is zero
  Product plain{p};
  plain.a = converted(p.a, dtype);
  plain.b = converted(p.b, dtype);
  if (!is_empty && has_epilogue(p, dtype) && product(plain)) return;
  if (p.before.defined()) {
    MatmulProblem straight = p;
    straight.y = p.before;
    straight.before = {};
    straight.activation = Activation::none;
    matmul(straight);
    Tensor y = p.y;
    return activate(p.activation, p.before, y);
  }
  // A kernel does what the library does not, with sums that are not rounded yet.
  plain.bias = {};
  plain.activation = Activation::none;
  const bool in_place = p.y.dtype() == DType::f32 && p.y.is_contiguous();
  if (!in_place) plain.y = Tensor::empty(p.y.shape(), {DType::f32, device()});
  if (is_empty) {
    fill(plain.y, 0);
  } else {
    check(product(plain), "matmul: cuBLAS has no way to multiply {} {} by {} {}", p.a.dtype(),
          p.a.shape(), p.b.dtype(), p.b.shape());
  }
  cuda::finish_product(plain.y, p, stream());
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

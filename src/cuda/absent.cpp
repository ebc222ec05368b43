#include "core/check.h"
#include "cuda/backend.h"

namespace qkv {

Backend& cuda_backend(int index) {
  fail("cuda:{}: this build of qkv has no CUDA backend; use the CPU", index);
}

}  // namespace qkv

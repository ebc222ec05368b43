#include "qkv/memory.h"

#include <gtest/gtest.h>

#include "qkv/tensor.h"

namespace qkv {
namespace {

constexpr std::int64_t kMegabyte = 1 << 20;
constexpr std::int64_t kTensor = 256 * kMegabyte;
// What else the process may take or give back meanwhile.
constexpr std::size_t kSlack = 32 * kMegabyte;

TEST(Memory, PeakIsWhatWasHeldAtOnce) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps what was freed";
#endif
  reset_peak_memory(kCpu);
  const MemoryUse before = memory_use(kCpu);
  if (before.now == 0) GTEST_SKIP() << "the system does not tell the memory of a process";
  EXPECT_LT(before.peak, before.now + kSlack);
  {
    const Tensor held = Tensor::zeros({kTensor}, {DType::u8});
    EXPECT_GT(memory_use(kCpu).now + kSlack, before.now + kTensor);
  }
  const MemoryUse after = memory_use(kCpu);
  EXPECT_LT(after.now, before.now + kSlack);
  EXPECT_GT(after.peak + kSlack, before.now + kTensor);
  EXPECT_LT(after.peak, before.now + kTensor + kSlack);
  reset_peak_memory(kCpu);
  EXPECT_LT(memory_use(kCpu).peak, before.now + kSlack);
}

TEST(Memory, TellsWhatTheDeviceHasInAll) {
  const MemoryUse use = memory_use(kCpu);
  if (use.total == 0) GTEST_SKIP() << "the system does not tell the memory of the machine";
  EXPECT_GT(use.total, use.now);
  EXPECT_GE(use.total, use.peak);
}

}  // namespace
}  // namespace qkv

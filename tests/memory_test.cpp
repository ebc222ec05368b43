#include "qkv/memory.h"

#include <gtest/gtest.h>

#include "cpu/large_blocks.h"
#include "qkv/tensor.h"

namespace qkv {
namespace {

constexpr std::int64_t kMegabyte = 1 << 20;
constexpr std::int64_t kTensor = 256 * kMegabyte;
// What else the process may take or give back meanwhile.
constexpr std::size_t kSlack = 32 * kMegabyte;

TEST(Memory, PeakIsWhatWasHeldAtOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep what was freed, and memory of their own";
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

constexpr std::size_t kBlock = 8 * kMegabyte;

TEST(LargeBlocks, GivesBackWhatWasKept) {
  cpu::LargeBlocks blocks(4 * kBlock);
  void* first = blocks.take(kBlock);
  void* second = blocks.take(kBlock);
  ASSERT_NE(first, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  blocks.give_back(first);
  EXPECT_EQ(blocks.kept_bytes(), kBlock);
  EXPECT_EQ(blocks.take(kBlock - 100), first);  // a little smaller fits
  EXPECT_EQ(blocks.kept_bytes(), 0u);
  blocks.give_back(first);
  blocks.give_back(second);
  EXPECT_EQ(blocks.kept_bytes(), 2 * kBlock);
  void* small = blocks.take(kBlock / 2);  // would leave half of a block idle
  blocks.give_back(small);                // the same place, perhaps, but not one that was kept
  EXPECT_EQ(blocks.kept_bytes(), kBlock + kBlock / 2);
  blocks.trim();
  EXPECT_EQ(blocks.kept_bytes(), 0u);
}

TEST(LargeBlocks, NeverHoldMoreThanWasUsedAtOnce) {
  cpu::LargeBlocks blocks(100 * kBlock);
  void* first = blocks.take(2 * kBlock);
  blocks.give_back(first);
  void* second = blocks.take(kBlock);  // beside what is kept it would be more: that goes
  EXPECT_EQ(blocks.kept_bytes(), 0u);
  void* third = blocks.take(kBlock);
  blocks.give_back(second);
  EXPECT_EQ(blocks.kept_bytes(), kBlock);
  blocks.give_back(third);
  EXPECT_EQ(blocks.kept_bytes(), 2 * kBlock);
}

TEST(LargeBlocks, KeepNoMoreThanTheyMay) {
  cpu::LargeBlocks blocks(kBlock);
  void* first = blocks.take(kBlock);
  void* second = blocks.take(kBlock);
  blocks.give_back(first);
  blocks.give_back(second);
  EXPECT_EQ(blocks.kept_bytes(), kBlock);
  EXPECT_EQ(blocks.take(kBlock), second);  // the oldest went
  blocks.give_back(second);
  EXPECT_EQ(blocks.take(SIZE_MAX), nullptr);
  EXPECT_EQ(blocks.take(std::size_t{1} << 60), nullptr);  // more than there is
  EXPECT_EQ(blocks.kept_bytes(), 0u);                     // all was offered for it
}

}  // namespace
}  // namespace qkv

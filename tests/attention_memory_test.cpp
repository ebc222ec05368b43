// Nothing S x S is ever allocated on the fast path.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "support/attention_check.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace qkv::test {
namespace {

constexpr std::int64_t kLength = 8192;  // S x S floats would be 256 MiB

// The peak of the process's resident memory in MiB, or -1 where the system does not tell.
double peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes / 1024;
  }
  return -1;
}

// Sets the peak back to what is in use now (Linux; elsewhere the peak of earlier tests remains and
// hides growth, which makes this test weaker, never wrong).
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

void check_memory(AttentionCase c, Pass pass) {
  c.batch = c.heads = c.key_heads = 1;
  if (c.queries > 4) c.queries = kLength;
  c.keys = kLength;
  const AttentionInputs in = make_inputs(c, DType::f32);
  forget_peak();
  const double before = peak_memory();
  run_attention(in, pass);
  EXPECT_LT(peak_memory() - before, 64) << c.name;
}

TEST(AttentionMemory, GrowsWithTheLengthAlone) {
  if (peak_memory() < 0) GTEST_SKIP() << "this system does not tell the peak of memory";
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory, and its own";
  check_memory({.name = "plain"}, Pass::both);
  check_memory({.name = "causal with everything",
                .causal = true,
                .slopes = {1},
                .softcap = 5,
                .dropout = 0.1f,
                .sinks = true,
                .statistics = Statistics::all,
                .dlse = true,
                .dentropy = true},
               Pass::both);
  check_memory({.name = "window and table", .left = 500, .right = 20, .buckets = 32}, Pass::both);
  check_memory({.name = "broadcast bias", .causal = true, .bias = {1, 1, 1, kLength}}, Pass::both);
  check_memory({.name = "decode", .queries = 1, .causal = true}, Pass::both);
}

// A few rows of the weights of a long input, or a coarse picture of all of them.
TEST(AttentionMemory, WeightsOnlyAsAskedFor) {
  if (peak_memory() < 0) GTEST_SKIP() << "this system does not tell the peak of memory";
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory, and its own";
  const AttentionInputs in = make_inputs(
      {.batch = 1, .heads = 1, .key_heads = 1, .queries = kLength, .keys = kLength}, DType::f32);
  forget_peak();
  const double before = peak_memory();
  attention_weights(in.q, in.k, {}, {.rows = {0, 17, kLength - 1}});
  attention_weights(in.q, in.k, {}, {.pool_rows = 64, .pool_keys = 64});
  EXPECT_LT(peak_memory() - before, 64);
}

}  // namespace
}  // namespace qkv::test

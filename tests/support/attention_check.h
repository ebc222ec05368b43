// Holds the library to the reference: one case, one dtype, every SIMD target of this machine.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "qkv/cpu.h"
#include "qkv/threads.h"
#include "support/attention_case.h"
#include "support/attention_reference.h"
#include "support/targets.h"

namespace qkv::test {

inline constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

// Puts the target in use, and the number of threads, back when it goes.
class KeepSettings {
 public:
  KeepSettings() : target_(cpu_target()), threads_(num_threads()) {}
  ~KeepSettings() {
    set_cpu_target(target_);
    set_num_threads(threads_);
  }
  KeepSettings(const KeepSettings&) = delete;
  KeepSettings& operator=(const KeepSettings&) = delete;

 private:
  std::string target_;
  int threads_;
};

// Where run_attention runs. QKV_TEST_DEVICE = cpu or cuda keeps tests to one device; else they run
// on all that the machine has.
Device test_device();
void set_test_device(Device device);
bool tests_run_on(DeviceType type);

// Calls body() with each target in use, and on the GPU if there is one; failures name the target.
template <class F>
void for_each_target(F&& body) {
  const KeepSettings keep;
  if (tests_run_on(DeviceType::cpu)) {
    for (const std::string& target : test::tested_targets()) {
      set_cpu_target(target);
      SCOPED_TRACE("target " + target);
      body();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  if (!tests_run_on(DeviceType::cuda)) {
    if (!tests_run_on(DeviceType::cpu)) GTEST_SKIP() << "there is no CUDA device";
    return;
  }
  set_test_device({DeviceType::cuda, 0});
  SCOPED_TRACE("on the GPU");
  body();
  set_test_device(kCpu);
}

// The rule: max |ours - exact| <= 2 * max |plain - exact| + 1e-6.
double limit_of(const std::vector<double>& exact, const std::vector<double>& plain);
// Where the exact value is not finite, ours must be the same infinity, or NaN as well.
void expect_close(const std::string& what, const Tensor& ours, const std::vector<double>& exact,
                  double limit);
// Every bit of every element.
void expect_same_bits(const std::string& what, const Tensor& a, const Tensor& b);

// Everything that forward and backward return.
struct AttentionRun {
  AttentionForward forward;
  AttentionGrads grads;  // undefined after a forward pass alone
};
enum class Pass : std::uint8_t { forward, both };
AttentionRun run_attention(const AttentionInputs& in, Pass pass = Pass::both);
Tensor run_weights(const AttentionInputs& in, const WeightsSelection& selection = {});
void expect_same_bits(const AttentionRun& a, const AttentionRun& b);

// Computes the reference once and compares each target with it: out, lse, the statistics asked
// for and, unless told otherwise, every gradient.
void check_attention(const AttentionCase& c, DType dtype, Pass pass = Pass::both);
void check_attention(const AttentionInputs& in, Pass pass = Pass::both);

// For TEST_P over dtypes: the name of a parameter.
inline std::string dtype_name(const ::testing::TestParamInfo<DType>& info) {
  return to_string(info.param);
}
class AttentionByDType : public ::testing::TestWithParam<DType> {};

// The same over the edges of a GPU's tiles. A CPU, whose tiles end elsewhere, is asked once, and
// not of f16, of which it makes what it makes of bf16: f32.
class AttentionOfGpuTiles : public AttentionByDType {
 protected:
  void SetUp() override {
    best_target_only = true;
    if (!tests_run_on(DeviceType::cuda) && GetParam() == DType::f16) {
      GTEST_SKIP() << "tiles of a GPU in f16: there is no GPU";
    }
  }
  void TearDown() override { best_target_only = before_; }

 private:
  bool before_ = best_target_only;
};

}  // namespace qkv::test

namespace qkv {

// How GoogleTest shows a parameter.
inline void PrintTo(DType dtype, std::ostream* out) { *out << to_string(dtype); }

}  // namespace qkv

// Every row of the operator table (support/op_table.h), four times.
#include <gtest/gtest.h>

#include <string>

#include "core/backend.h"
#include "qkv/cpu.h"
#include "qkv/error.h"
#include "qkv/threads.h"
#include "support/op_check.h"
#include "support/targets.h"
#include "support/values.h"

namespace qkv::test {
namespace {

class Ops : public ::testing::TestWithParam<OpRow> {
 protected:
  void SetUp() override {
    target_ = cpu_target();
    threads_ = num_threads();
  }
  void TearDown() override {
    set_cpu_target(target_);
    set_num_threads(threads_);
  }

 private:
  std::string target_;
  int threads_ = 1;
};
INSTANTIATE_TEST_SUITE_P(Table, Ops, ::testing::ValuesIn(op_table()),
                         [](const auto& test) { return test.param.name; });

std::string describe(const Shapes& shapes, DType dtype, Strides strides) {
  std::string text = to_string(dtype) + (strides == Strides::row_major  ? " row-major"
                                         : strides == Strides::reversed ? " reversed"
                                                                        : " with gaps");
  for (const Shape& shape : shapes) text += " " + to_string(shape);
  return text;
}

TEST_P(Ops, MatchFloat64OnEveryTarget) {
  const OpRow& row = GetParam();
  for (const Shapes& shapes : row.shapes) {
    for (const DType dtype : kFloatTypes) {
      for (const Strides strides : kStrides) {
        const OpInputs in = make_op_inputs(row, shapes, dtype, strides);
        const Arrays expected = row.reference(in.arrays, rounding_of(dtype));
        for (const std::string& target : test::tested_targets()) {
          set_cpu_target(target);
          const Tensors got = row.op(in.tensors);
          ASSERT_EQ(got.size(), expected.size());
          for (std::size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(compare_output(row, got[i], expected[i]), "")
                << "output " << i << " on " << target << ": " << describe(shapes, dtype, strides);
          }
        }
      }
    }
  }
}

TEST_P(Ops, HaveTheGradientsOfDifferenceQuotients) {
  const OpRow& row = GetParam();
  for (const Shapes& shapes : row.shapes) {
    for (const DType dtype : kFloatTypes) {
      // The same values in every layout, hence the same quotients.
      const OpInputs plain = make_op_inputs(row, shapes, dtype, Strides::row_major);
      const Arrays expected = difference_quotients(row, plain.arrays);
      for (const Strides strides : kStrides) {
        const OpInputs in = make_op_inputs(row, shapes, dtype, strides);
        for (const std::string& target : test::tested_targets()) {
          set_cpu_target(target);
          const OpGradients got = run_with_tape(row, in.tensors);
          if (got.gradients.empty()) continue;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(compare_gradient(got.gradients[i], expected[i], dtype, row.terms), "")
                << "input " << i << " on " << target << ": " << describe(shapes, dtype, strides);
          }
        }
      }
    }
  }
}

TEST_P(Ops, HaveTheSameBitsAtAnyNumberOfThreads) {
  const OpRow& row = GetParam();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const OpInputs in = make_op_inputs(row, row.large, dtype, Strides::row_major);
    std::vector<std::vector<std::uint8_t>> expected;
    for (const int threads : {1, 2, 3, 8}) {
      set_num_threads(threads);
      const OpGradients got = run_with_tape(row, in.tensors);
      std::vector<std::vector<std::uint8_t>> bytes;
      for (const Tensor& x : got.outputs) bytes.push_back(bytes_of(x));
      for (const Tensor& x : got.gradients) bytes.push_back(bytes_of(x));
      if (threads == 1) expected = bytes;
      ASSERT_EQ(bytes, expected) << threads << " threads, " << to_string(dtype);
    }
  }
}

// The values the threads are given are the right ones as well: past every block of the kernels.
TEST_P(Ops, MatchFloat64WhereTheyAreLarge) {
  const OpRow& row = GetParam();
  const OpInputs in = make_op_inputs(row, row.large, DType::f32, Strides::row_major);
  const Arrays expected = row.reference(in.arrays, rounding_of(DType::f32));
  for (const std::string& target : test::tested_targets()) {
    set_cpu_target(target);
    const Tensors got = row.op(in.tensors);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(compare_output(row, got[i], expected[i]), "") << i << " on " << target;
    }
  }
}

TEST_P(Ops, AgreeOnCpuAndCuda) {
  const Device cuda{DeviceType::cuda, 0};
  try {
    backend(cuda);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const OpRow& row = GetParam();
  std::vector<Shapes> all = row.shapes;
  all.push_back(row.large);
  for (const Shapes& shapes : all) {
    for (const DType dtype : kFloatTypes) {
      for (const Strides strides : kStrides) {
        const OpInputs in = make_op_inputs(row, shapes, dtype, strides);
        const Arrays expected = row.reference(in.arrays, rounding_of(dtype));
        Tensors there;
        for (const Tensor& x : in.tensors) there.push_back(on_device(x, cuda));
        const Tensors outputs = row.op(there);
        const OpGradients got = run_with_tape(row, there), want = run_with_tape(row, in.tensors);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(compare_output(row, outputs[i], expected[i]), "")
              << "output " << i << ": " << describe(shapes, dtype, strides);
        }
        for (std::size_t i = 0; i < want.gradients.size(); ++i) {
          Array gradient(want.gradients[i].shape());
          gradient.values = values_of(want.gradients[i]);
          ASSERT_EQ(compare_gradient(got.gradients[i], gradient, dtype, row.terms), "")
              << "input " << i << ": " << describe(shapes, dtype, strides);
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test

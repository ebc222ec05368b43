// Tensors on their way to the CPU: what arrives is what was there when they set out.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/backend.h"
#include "expect_error.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/devices.h"
#include "support/values.h"

namespace qkv::test {
namespace {

TEST(Reading, GivesWhatWasThereInEveryLayoutAndDtype) {
  for (const Device device : devices()) {
    Generator random(3);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Tensor whole = random.normal({5, 7, 3}, 0, 1, dtype);
      const Tensor there = to(whole, device);
      const auto same = [&](const Tensor& x, const Tensor& expected) {
        const Tensor got = backend(device).begin_reading(x)->wait();
        EXPECT_EQ(got.device(), kCpu);
        EXPECT_EQ(got.shape(), expected.shape());
        EXPECT_EQ(bytes_of(got), bytes_of(expected)) << to_string(device) << to_string(dtype);
      };
      same(there, whole);
      same(transpose(there, 0, 2), transpose(whole, 0, 2));
      same(slice(there, 1, 2, 5), slice(whole, 1, 2, 5));
      same(slice(there, 1, 2, 2), slice(whole, 1, 2, 2));
      same(reshape(slice(slice(slice(there, 0, 0, 1), 1, 0, 1), 2, 0, 1), {}),
           reshape(slice(slice(slice(whole, 0, 0, 1), 1, 0, 1), 2, 0, 1), {}));
    }
  }
}

TEST(Reading, KeepsWhatIsOverwrittenOrFreedMeanwhile) {
  for (const Device device : devices()) {
    // More than one at a time and of several sizes: places to arrive at are used again.
    for (int round = 0; round < 3; ++round) {
      std::vector<std::unique_ptr<Reading>> readings;
      for (const std::int64_t count : {1, 5000, 300000, 7, 1}) {
        Tensor x = Tensor::full({count}, static_cast<double>(count + round), {DType::f32, device});
        readings.push_back(backend(device).begin_reading(x));
        backend(device).fill(x, -1);
      }
      readings.erase(readings.begin() + 1);  // never read
      for (const auto& reading : readings) {
        const Tensor first = reading->wait();
        const auto expected = static_cast<float>(first.numel() + round);
        for (const float value : first.to_vector<float>()) ASSERT_EQ(value, expected);
        EXPECT_EQ(bytes_of(reading->wait()), bytes_of(first));
      }
    }
  }
}

TEST(Reading, CannotBeRecorded) {
  if (!tests_run_on(DeviceType::cuda)) GTEST_SKIP() << "there is no CUDA device";
  const Tensor x = Tensor::zeros({3}, {DType::f32, kGpu});
  EXPECT_ERROR("read: f32 [3] cannot be recorded",
               backend(kGpu).record([&] { backend(kGpu).begin_reading(x); }));
  EXPECT_EQ(backend(kGpu).begin_reading(x)->wait().to_vector<float>(), std::vector<float>(3));
}

}  // namespace
}  // namespace qkv::test

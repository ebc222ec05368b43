#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "expect_error.h"
#include "qkv/ops.h"
#include "qkv/tensor.h"

// A sanitizer's allocator would end the program where malloc returns null, which is what the
// out-of-memory tests wait for.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace qkv {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST(Shape, KnowsItsExtents) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(to_string(shape), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ((Shape{5, 0, 3}.numel()), 0);
}

TEST(Shape, ComparesExtentsAndRank) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{3, 2}));
  EXPECT_FALSE((Shape{2, 0}) == (Shape{2}));
}

TEST(Shape, RefusesWhatCannotBe) {
  EXPECT_ERROR("no negative extent, got -3 at axis 1", Shape{2, -3});
  EXPECT_ERROR("at most 8 axes, got 9", Shape{1, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_ERROR("cannot be addressed", Shape{kHuge});
  EXPECT_ERROR("cannot be addressed", Shape{1 << 30, 1 << 30, 1 << 30});
  // A zero does not excuse the others: a slice of such a shape would overflow.
  EXPECT_ERROR("cannot be addressed", Shape{0, kHuge, kHuge});
  EXPECT_ERROR("axis 2 is out of range for rank 2", Shape{1, 1}[2]);
  EXPECT_ERROR("axis -3 is out of range for rank 2", Shape{1, 1}[-3]);
}

TEST(Tensor, StartsUndefined) {
  const Tensor x;
  EXPECT_FALSE(x.defined());
  EXPECT_ERROR("undefined", x.raw());
  EXPECT_ERROR("undefined", x.device());
  EXPECT_ERROR("undefined", x.view(Shape{}, {}, 0));
}

TEST(Tensor, IsRowMajorAndAligned) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::i8,
                            DType::u8, DType::boolean}) {
    const Tensor x = Tensor::zeros({2, 3, 4}, {dtype});
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_EQ(x.stride(0), 12);
    EXPECT_EQ(x.stride(1), 4);
    EXPECT_EQ(x.stride(-1), 1);
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.raw()) % 64, 0u);
  }
}

TEST(Tensor, FillsEveryDtype) {
  EXPECT_EQ(Tensor::full({3}, 2.5).to_vector<float>(), (std::vector<float>{2.5f, 2.5f, 2.5f}));
  EXPECT_EQ(float(Tensor::full({1}, -0.5, {DType::bf16}).to_vector<bf16>()[0]), -0.5f);
  EXPECT_EQ(float(Tensor::full({1}, -0.5, {DType::f16}).to_vector<f16>()[0]), -0.5f);
  EXPECT_EQ(Tensor::full({1}, -7, {DType::i32}).to_vector<std::int32_t>()[0], -7);
  EXPECT_EQ(Tensor::full({1}, 1 << 20, {DType::i64}).to_vector<std::int64_t>()[0], 1 << 20);
  EXPECT_EQ(Tensor::full({1}, 200, {DType::u8}).to_vector<std::uint8_t>()[0], 200);
  EXPECT_EQ(Tensor::full({1}, 1, {DType::boolean}).to_vector<bool>()[0], true);
  EXPECT_EQ(Tensor::zeros({2}).to_vector<float>(), (std::vector<float>{0, 0}));
}

TEST(Tensor, CopiesValuesIn) {
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  const Tensor x = Tensor::from(values, {2, 3});
  values[0] = 9;
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_ERROR("6 values do not fill shape [2, 2]", Tensor::from(values, {2, 2}));
  EXPECT_EQ(Tensor::from(std::vector<float>{}, {0, 3}).to_vector<float>().size(), 0u);
  EXPECT_EQ(Tensor::from(std::vector<float>{4}, {}).to_vector<float>(), std::vector<float>{4});
}

TEST(Tensor, HandsOutOnlyItsOwnType) {
  const Tensor x = Tensor::zeros({2});
  EXPECT_ERROR("holds f32, not i32", x.data<std::int32_t>());
  EXPECT_ERROR("holds f32, not f16", x.to_vector<f16>());
}

TEST(Tensor, SaysWhyItIsUndefined) {
  const Tensor plain, absent = Tensor::undefined("nobody asked");
  EXPECT_FALSE(absent.defined());
  EXPECT_EQ(absent.id(), 0u);
  EXPECT_EQ(testing::error_of([&] { plain.device(); }), "an undefined tensor has no device");
  EXPECT_ERROR("no device: nobody asked", absent.device());
  EXPECT_ERROR("no data: nobody asked", absent.raw());
  EXPECT_ERROR("no data: nobody asked", absent.data<std::int32_t>());
  EXPECT_ERROR("no data: nobody asked", absent.to_vector<std::int32_t>());
  EXPECT_ERROR("no data: nobody asked", absent.to_vector<double>());
  EXPECT_ERROR("view: the tensor is undefined: nobody asked", absent.view({}, {}, 0));
  EXPECT_ERROR("contiguous: x is undefined: nobody asked", contiguous(absent));
  EXPECT_EQ(Tensor::zeros({1}).why_undefined(), "");
}

TEST(Tensor, GivesDoublesOfEveryDtypeThatTheyHold) {
  const std::vector<double> expected{1, 0, 3};
  const Tensor x = Tensor::from(std::vector<float>{1, 0, 3}, {3});
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i8, DType::u8}) {
    EXPECT_EQ(to(x, dtype).to_vector<double>(), expected) << to_string(dtype);
  }
  EXPECT_EQ(to(x, DType::boolean).to_vector<double>(), (std::vector<double>{1, 0, 1}));
  const std::int64_t back[] = {-1};
  EXPECT_EQ(x.view({3}, back, 2).to_vector<double>(), (std::vector<double>{3, 0, 1}));
  const float third = 1.0f / 3;
  EXPECT_EQ(Tensor::full({1}, third).to_vector<double>()[0], double{third});
  EXPECT_ERROR("i64, and a double does not hold", to(x, DType::i64).to_vector<double>());
}

// What a float cannot be among integers, C++ leaves undefined.
TEST(Tensor, FloatsBecomeIntegersOrAreRefused) {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from(
      std::vector<float>{-infinity, -1e30f, -1.9f, 300, 1e30f, infinity, std::nanf("")}, {7});
  EXPECT_EQ(to(x, DType::i32).to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{INT32_MIN, INT32_MIN, -1, 300, INT32_MAX, INT32_MAX, 0}));
  EXPECT_EQ(to(x, DType::i64).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{kLowest, kLowest, -1, 300, kHuge, kHuge, 0}));
  EXPECT_EQ(to(x, DType::u8).to_vector<std::uint8_t>(),
            (std::vector<std::uint8_t>{0, 0, 0, 255, 255, 255, 0}));
  EXPECT_EQ(to(x, DType::i8).to_vector<std::int8_t>(),
            (std::vector<std::int8_t>{-128, -128, -1, 127, 127, 127, 0}));
  for (const double value : {-1e300, -129.0, 256.0, 1e300, double{infinity}, std::nan("")}) {
    EXPECT_ERROR("Tensor::full", Tensor::full({1}, value, {DType::i8}));
    EXPECT_ERROR("Tensor::full", Tensor::full({1}, value, {DType::u8}));
  }
  EXPECT_ERROR("Tensor::full", Tensor::full({1}, 0x1p63, {DType::i64}));
  EXPECT_EQ(Tensor::full({1}, -0x1p63, {DType::i64}).to_vector<std::int64_t>()[0], kLowest);
  EXPECT_EQ(Tensor::full({1}, -0.5, {DType::u8}).to_vector<std::uint8_t>()[0], 0);
}

TEST(Tensor, RunsOutOfMemoryWithAnError) {
  EXPECT_THROW(Tensor::empty({std::int64_t{1} << 56}), OutOfMemory);
  EXPECT_ERROR("out of memory", Tensor::empty({std::int64_t{1} << 56}));
  EXPECT_ERROR("out of memory", Tensor::zeros({std::int64_t{1} << 50, 1 << 8}, {DType::i64}));
}

TEST(Tensor, HasNoCudaInThisBuildOrSaysSo) {
  try {
    Tensor::zeros({1}, {DType::f32, {DeviceType::cuda, 0}});
  } catch (const Error& error) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "cuda:0", std::string(error.what()));
  }
}

TEST(View, SharesTheBytes) {
  const Tensor x = Tensor::zeros({2, 3});
  const std::int64_t strides[] = {1, 3};
  const Tensor t = x.view({3, 2}, strides, 0);
  t.data<float>()[1] = 5;  // element [0][1] of x: views alias
  EXPECT_EQ(x.to_vector<float>()[1], 5);
  EXPECT_EQ(t.to_vector<float>(), (std::vector<float>{0, 0, 5, 0, 0, 0}));
  EXPECT_FALSE(t.is_contiguous());
}

TEST(View, ReadsBackwardsAndRepeats) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3}, {3});
  const std::int64_t back[] = {-1};
  EXPECT_EQ(x.view({3}, back, 2).to_vector<float>(), (std::vector<float>{3, 2, 1}));
  const std::int64_t still[] = {0};
  EXPECT_EQ(x.view({4}, still, 1).to_vector<float>(), (std::vector<float>{2, 2, 2, 2}));
}

TEST(View, StaysInsideItsStorage) {
  const Tensor x = Tensor::zeros({2, 3});
  const std::int64_t rows[] = {3, 1}, far[] = {kHuge, 1}, back[] = {-3, 1}, one[] = {1};
  EXPECT_ERROR("reaches outside the 6 elements", x.view({2, 3}, rows, 1));
  EXPECT_ERROR("reaches outside", x.view({3, 3}, rows, 0));
  EXPECT_ERROR("reaches outside", x.view({2, 3}, back, 0));
  EXPECT_ERROR("reaches outside", x.view({1}, one, -1));
  EXPECT_ERROR("reaches outside", x.view({1}, one, 6));
  EXPECT_ERROR("view:", x.view({3, 3}, far, 0));
  EXPECT_ERROR("needs 2 strides, got 1", x.view({2, 3}, one, 0));
  EXPECT_EQ(x.view({1}, one, 5).numel(), 1);
  EXPECT_EQ(x.view({0}, one, 6).numel(), 0);
}

TEST(View, SurvivesNumbersThatOverflow) {
  const Tensor x = Tensor::zeros({2, 3});
  const Tensor second = slice(x, 0, 1, 2);
  const std::int64_t one[] = {1}, far[] = {kHuge};
  EXPECT_ERROR("view:", second.view({1}, one, kHuge));
  EXPECT_ERROR("view:", second.view({1}, one, -kHuge - 1));
  EXPECT_ERROR("view:", second.view({2}, far, 1));
  EXPECT_ERROR("view:", second.view({0}, one, kHuge));
}

TEST(View, OfAViewCountsFromItsFirstElement) {
  const Tensor x = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {6});
  const std::int64_t two[] = {2}, one[] = {1};
  const Tensor odd = x.view({3}, two, 1);
  EXPECT_EQ(odd.to_vector<float>(), (std::vector<float>{1, 3, 5}));
  EXPECT_EQ(odd.view({2}, one, 1).to_vector<float>(), (std::vector<float>{2, 3}));
}

TEST(Wrap, UsesTheCallersMemory) {
  std::vector<float> values{1, 2, 3, 4};
  const Tensor x = Tensor::wrap(values.data(), {2, 2}, DType::f32);
  values[3] = 9;
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3, 9}));
  EXPECT_ERROR("data is null", Tensor::wrap(nullptr, {1}, DType::f32));
  EXPECT_EQ(Tensor::wrap(nullptr, {0}, DType::f32).numel(), 0);
}

TEST(Wrap, KeepsTheOwnerUntilTheLastViewIsGone) {
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4});
  const std::weak_ptr<std::vector<float>> watch = owner;
  Tensor tail;
  {
    const Tensor x = Tensor::wrap(owner->data(), {4}, DType::f32, owner);
    owner.reset();
    tail = slice(x, 0, 2, 4);
  }
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(tail.to_vector<float>(), (std::vector<float>{3, 4}));
  tail = {};
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace qkv

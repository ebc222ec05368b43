// Models with int8 weights and caches: loading, saving, refusing, and how far they are from f32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "expect_error.h"
#include "qkv/attention.h"
#include "qkv/checkpoint.h"
#include "qkv/cpu.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"
#include "qkv/random.h"
#include "support/goldens.h"
#include "support/temporary_folder.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;
using test::golden;
using test::kGoldens;
using test::values_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

Tensor counting(std::int64_t batch, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * count; ++i) ids.push_back((i * 37 + 11) % 90 + 4);
  return Tensor::from(ids, {batch, count});
}

// What a model says to some tokens: logits, or hidden states where there is no head.
Tensor output_of(const Model& model) {
  ModelInput input{.ids = counting(2, 12)};
  if (model.info().kind == ModelKind::encoder_decoder) input.decoder_ids = counting(2, 9);
  const ModelOutput out = model(input);
  return out.logits.defined() ? out.logits : out.last_hidden;
}

double cosine(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += x[i] * y[i];
    xx += x[i] * x[i];
    yy += y[i] * y[i];
  }
  return xy / std::sqrt(xx * yy);
}

// The folder of a golden, quantised.
void save_quantized(const std::string& name, const std::string& folder, std::int64_t group) {
  const auto model = load_model(golden(name), {.dtype = DType::i8, .group = group});
  save_model(*model, folder);
}

class Int8Golden : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Int8Golden, ::testing::ValuesIn(kGoldens),
                         [](const auto& golden_name) {
                           std::string name = golden_name.param;
                           for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
                           return name;
                         });

TEST_P(Int8Golden, IsNearF32) {
  const Tensor exact = output_of(*load_model(golden(GetParam())));
  for (const std::int64_t group : {0, 32}) {
    const auto model = load_model(golden(GetParam()), {.dtype = DType::i8, .group = group});
    EXPECT_GT(cosine(output_of(*model), exact), 0.999) << "group " << group;
  }
}

TEST_P(Int8Golden, EveryMatrixIsInt8AndNothingElse) {
  const auto model = load_model(golden(GetParam()), {.dtype = DType::i8, .group = 0});
  std::int64_t matrices = 0;
  model->visit(
      nn::Visitor([&](const std::string& name, Tensor& value,
                      const Shape&) { EXPECT_EQ(value.dtype(), DType::f32) << name; },
                  [&](const std::string& name, nn::Weight& weight, const Shape& shape, int axis) {
                    EXPECT_TRUE(weight.is_quantized()) << name;
                    EXPECT_EQ(weight.shape(), shape) << name;
                    EXPECT_EQ(weight.scale.size(axis), 1) << name;
                    EXPECT_EQ(weight.scale.size(1 - axis), shape[1 - axis]) << name;
                    ++matrices;
                  }));
  EXPECT_GT(matrices, 4);
  EXPECT_EQ(nn::count_parameters(*model), nn::count_parameters(*load_model(golden(GetParam()))));
}

TEST_P(Int8Golden, SavedAndLoadedItIsTheSame) {
  for (const std::int64_t group : {0, 32}) {
    const TemporaryFolder folder;
    const auto model = load_model(golden(GetParam()), {.dtype = DType::i8, .group = group});
    save_model(*model, folder.path());
    const auto again = load_model(folder.path());
    EXPECT_THAT(again->config_text(), HasSubstr("qkv-int8"));
    EXPECT_EQ(bytes_of(output_of(*again)), bytes_of(output_of(*model)));
    const auto before = nn::parameters(*model), after = nn::parameters(*again);
    ASSERT_EQ(before.size(), after.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(before[i].name, after[i].name);
      EXPECT_EQ(bytes_of(before[i].value), bytes_of(after[i].value)) << before[i].name;
    }
  }
}

TEST(Int8Model, OfOneTargetIsThatOfAnother) {
  const std::string before = cpu_target();
  Tensor first;
  for (const std::string& target : cpu_targets()) {
    set_cpu_target(target);
    const auto model = load_model(golden("gpt2"), {.dtype = DType::i8, .group = 64});
    const Tensor got = output_of(*model);
    if (!first.defined()) first = got;
    EXPECT_GT(cosine(got, first), 0.9999) << target;
  }
  set_cpu_target(before);
}

TEST(Int8Model, WidensAgain) {
  const TemporaryFolder folder;
  save_quantized("gpt2", folder.path(), 64);
  const auto quantized = load_model(folder.path());
  const auto wide = load_model(folder.path(), {.dtype = DType::f32});
  EXPECT_GT(cosine(output_of(*wide), output_of(*quantized)), 0.999);
  wide->visit(nn::Visitor([&](const std::string& name, Tensor& value, const Shape& shape) {
    EXPECT_EQ(value.dtype(), DType::f32) << name;
    EXPECT_EQ(value.shape(), shape) << name;
  }));
  // Rounded to the groups it was rounded to, it is what it was.
  const TemporaryFolder second;
  save_model(*wide, second.path());
  EXPECT_THAT(load_model(second.path())->config_text(), ::testing::Not(HasSubstr("quant")));
  const auto again = load_model(second.path(), {.dtype = DType::i8, .group = 64});
  EXPECT_GT(cosine(output_of(*again), output_of(*quantized)), 0.99999);
}

TEST(Int8Model, KeepsTheGroupsItWasStoredWith) {
  const TemporaryFolder folder;
  save_quantized("llama", folder.path(), 0);
  const auto as_stored = load_model(folder.path());
  const auto asked_for = load_model(folder.path(), {.dtype = DType::i8, .group = 32});
  EXPECT_EQ(bytes_of(output_of(*asked_for)), bytes_of(output_of(*as_stored)));
}

// As files had them before rows were spread: the names of their scales tell them apart.
TEST(Int8Model, MayHaveRowsThatAreNotSpread) {
  const auto model = load_model(golden("llama"), {.dtype = DType::f32});
  const Tensor exact = output_of(*model);
  model->visit(nn::Visitor([](const std::string&, Tensor&, const Shape&) {},
                           [](const std::string&, nn::Weight& weight, const Shape&, int) {
                             const Quantized q = quantize(weight, 32);
                             weight = {q.values, q.scale, q.spread};
                           }));
  model->tie();
  const TemporaryFolder folder;
  save_model(*model, folder.path());
  EXPECT_TRUE(Checkpoint::open(folder.path()).contains("model.layers.0.mlp.up_proj.weight_scale"));
  const Tensor stored = output_of(*load_model(folder.path()));
  EXPECT_EQ(bytes_of(stored), bytes_of(output_of(*model)));
  EXPECT_GT(cosine(stored, exact), 0.999);
}

TEST(Int8Model, IsMadeOfAPreset) {
  const auto model = make_model(golden("llama") + "/config.json", 3, DType::i8, 32);
  EXPECT_TRUE(std::isfinite(values_of(output_of(*model))[0]));
}

// --- what is refused ---

using Tensors = std::vector<std::pair<std::string, Tensor>>;

// A quantised Llama whose tensors went through `change`.
std::string error_with(const std::function<void(Tensors&)>& change) {
  const TemporaryFolder folder;
  save_quantized("llama", folder.path(), 0);
  const std::string file = folder.path() + "/model.safetensors";
  Tensors tensors;
  {
    const Checkpoint checkpoint = Checkpoint::open(file);
    for (const std::string& name : checkpoint.names()) tensors.emplace_back(name, checkpoint[name]);
  }
  change(tensors);
  save_checkpoint(file, tensors);
  return error_of([&] { load_model(folder.path()); });
}

const std::string kVictim = "model.layers.0.self_attn.q_proj.weight_spread_scale";

Tensor& victim(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (name == kVictim) return tensor;
  }
  throw Error("no " + kVictim);
}

TEST(Int8Model, ScalesThatAreMissingWrongOrNotFiniteAreListed) {
  EXPECT_THAT(error_with([](Tensors& t) {
                std::erase_if(t, [](const auto& named) { return named.first == kVictim; });
              }),
              HasSubstr("missing (1):\n    model.layers.0.self_attn.q_proj.weight_scale"));
  EXPECT_THAT(error_with([](Tensors& t) {
                victim(t) = Tensor::zeros({3, 1});
              }),
              HasSubstr(kVictim + " is f32 [3, 1], which does not fit the int8 [32, 32]"));
  EXPECT_THAT(error_with([](Tensors& t) {
                victim(t) = Tensor::zeros({32, 5});
              }),
              HasSubstr(kVictim + " is f32 [32, 5], which does not fit"));
  EXPECT_THAT(error_with([](Tensors& t) {
                victim(t) = Tensor::zeros({32, 1}, {DType::i32});
              }),
              HasSubstr(kVictim + " is i32"));
  EXPECT_THAT(error_with([](Tensors& t) {
                victim(t) = Tensor::full({32, 1}, std::nan(""));
              }),
              HasSubstr(kVictim + " has a scale of nan at 0"));
  EXPECT_THAT(error_with([](Tensors& t) {
                victim(t) = Tensor::full({32, 1}, -1);
              }),
              HasSubstr(kVictim + " has a scale of -1 at 0"));
  EXPECT_THAT(error_with([](Tensors& t) { t.emplace_back("stray_scale", Tensor::zeros({2})); }),
              HasSubstr("unexpected (1):\n    stray_scale"));
}

TEST(Int8Model, NormsAreNotInt8) {
  const std::string message = error_with([](Tensors& t) {
    for (auto& [name, tensor] : t) {
      if (name == "model.norm.weight") tensor = Tensor::zeros({32}, {DType::i8});
    }
  });
  EXPECT_THAT(message, HasSubstr("model.norm.weight is i8 [32], expected [32]"));
}

TEST(Int8Model, OtherDtypesAreRefused) {
  EXPECT_ERROR("weights can be", load_model(golden("gpt2"), {.dtype = DType::u8}));
  EXPECT_ERROR("group must be", load_model(golden("gpt2"), {.dtype = DType::i8, .group = 7}));
  EXPECT_ERROR("can be f32", nn::KvCache(4, DType::u8));
  EXPECT_ERROR("kv_dtype",
               generate(*load_model(golden("gpt2")), {{1, 2}}, {.kv_dtype = DType::f16}));
}

}  // namespace
}  // namespace qkv

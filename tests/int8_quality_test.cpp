// What int8 costs trained models, where they are: ../shared/models beside the project.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "qkv/checkpoint.h"
#include "qkv/error.h"
#include "qkv/models/perplexity.h"

namespace qkv {
namespace {

std::string trained(const std::string& name) {
  return (std::filesystem::path(QKV_TEST_DATA) / "../../../shared/models" / name).string();
}

#define QKV_NEEDS(folder) \
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here"

TEST(Int8Quality, SentenceEmbeddingsPointTheSameWay) {
  const std::string folder = trained("minilm-l6");
  QKV_NEEDS(folder);
  const auto exact = load_model(folder, {.dtype = DType::f32});
  const Checkpoint expected = Checkpoint::open(folder + "/expected.safetensors");
  for (const auto& [group, least] : {std::pair{0, 0.999}, {32, 0.999}, {64, 0.999}, {128, 0.999}}) {
    const auto rounded = load_model(folder, {.dtype = DType::i8, .group = group});
    for (int i = 0; expected.contains("in." + std::to_string(i)); ++i) {
      const ModelInput input{.ids = expected["in." + std::to_string(i)]};
      const std::vector<float> a = mean_embedding((*exact)(input).last_hidden).to_vector<float>();
      const std::vector<float> b = mean_embedding((*rounded)(input).last_hidden).to_vector<float>();
      double cosine = 0;  // both have unit length
      for (std::size_t k = 0; k < a.size(); ++k) cosine += double{a[k]} * b[k];
      EXPECT_GT(cosine, least) << "text " << i << ", group " << group;
    }
  }
}

// Of a story that stories15m tells itself, greedily; a text of people is harder to predict, and
// docs/int8.md has the figures of a thousand of them.
TEST(Int8Quality, PerplexityMovesByLittle) {
  const std::string folder = trained("stories15m");
  QKV_NEEDS(folder);
  const std::vector<std::int64_t> story =
      Checkpoint::open(folder + "/expected.safetensors")["gen.greedy"].to_vector<std::int64_t>();
  const double exact = perplexity(*load_model(folder, {.dtype = DType::f32}), story).value();
  for (const std::int64_t group : {0, 64}) {
    const auto rounded = load_model(folder, {.dtype = DType::i8, .group = group});
    EXPECT_NEAR(perplexity(*rounded, story).value() / exact, 1, 0.005) << "group " << group;
    EXPECT_NEAR(perplexity(*rounded, story, {.kv_dtype = DType::i8}).value() / exact, 1, 0.015)
        << "group " << group;
  }
}

TEST(Perplexity, IsTheMeanOverAllWindows) {
  const auto model = load_model(QKV_TEST_DATA "/goldens/gpt2", {.dtype = DType::f32});
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 30; ++i) ids.push_back((i * 37 + 11) % 90);
  const std::int64_t own = model->info().bos_id >= 0 ? 1 : 0;
  double loss = 0;
  std::int64_t tokens = 0;
  for (std::size_t begin = 0; begin < ids.size(); begin += static_cast<std::size_t>(12 - own)) {
    const std::size_t end = std::min(ids.size(), begin + static_cast<std::size_t>(12 - own));
    std::vector<std::int64_t> part(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                   ids.begin() + static_cast<std::ptrdiff_t>(end));
    if (own > 0) part.insert(part.begin(), model->info().bos_id);
    const auto length = static_cast<std::int64_t>(part.size());
    const Tensor window = Tensor::from(part, {1, length});
    loss += double{model->loss({.ids = window}, window).to_vector<float>()[0]} *
            static_cast<double>(length - 1);
    tokens += length - 1;
  }
  const Perplexity found = perplexity(*model, ids, {.window = 12});
  EXPECT_EQ(found.tokens, tokens);
  EXPECT_NEAR(found.loss, loss / static_cast<double>(tokens), 1e-6);
  EXPECT_THROW(perplexity(*model, {}), Error);
  EXPECT_THROW(perplexity(*model, ids, {.window = 1}), Error);
}

}  // namespace
}  // namespace qkv

// "attention" in a config: every family with every kind is made, saved, loaded, trained and, where
// it decodes, decoded with.
#include <gtest/gtest.h>

#include <cmath>

#include "expect_error.h"
#include "qkv/autograd.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"
#include "qkv/optim.h"
#include "support/temporary_folder.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;
using test::largest_difference;
using test::values_of;
using testing::TemporaryFolder;

const std::string kOptions =
    R"("attention_options": {"window": 8, "dilation": [1, 1, 2, 2], "length": 6, "features": 16,
 "redraw": 2})";

std::string with_attention(std::string config, const std::string& extra) {
  return config.substr(0, config.rfind('}')) + ", " + extra + "}";
}

std::string bert(const std::string& attention, const std::string& options = kOptions) {
  return with_attention(
      R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"],
 "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
 "vocab_size": 32, "max_position_embeddings": 40, "num_labels": 3, "pad_token_id": 0})",
      R"("attention": ")" + attention + "\", " + options);
}
std::string gpt2(const std::string& attention, const std::string& options = kOptions) {
  return with_attention(
      R"({"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40,
 "vocab_size": 32, "eos_token_id": 31})",
      R"("attention": ")" + attention + "\", " + options);
}
std::string llama(const std::string& attention, const std::string& options) {
  return with_attention(
      R"({"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 32,
 "max_position_embeddings": 40, "eos_token_id": 31})",
      R"("attention": ")" + attention + "\", " + options);
}
std::string marian(const std::string& encoder, const std::string& decoder) {
  return with_attention(
      R"({"model_type": "marian", "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
 "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32,
 "decoder_ffn_dim": 32, "max_position_embeddings": 40, "vocab_size": 32, "pad_token_id": 0,
 "eos_token_id": 31, "decoder_start_token_id": 0, "activation_function": "relu"})",
      R"("encoder_attention": ")" + encoder + R"(", "decoder_attention": ")" + decoder + "\", " +
          kOptions);
}

// GPT-2 and Llama with what they can have; dilation needs a key head for every head.
std::vector<std::string> decoders() {
  const std::string plain = R"("attention_options": {"window": 8, "features": 16})";
  return {gpt2("longformer"), gpt2("performer"), llama("longformer", plain),
          llama("performer", plain)};
}
std::vector<std::string> encoders() {
  return {bert("longformer"), bert("linformer"), bert("performer"),
          bert("linformer", R"("attention_options": {"length": 6, "sharing": "layerwise"})")};
}
std::vector<std::string> pairs() {
  return {marian("longformer", "longformer"), marian("linformer", "performer"),
          marian("performer", "exact")};
}

Tensor some_ids(std::int64_t batch, std::int64_t length) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * length; ++i) ids.push_back((i * 7 + i / 5) % 30 + 1);
  return Tensor::from(ids, {batch, length});
}

// Weights of some size, so that attention matters.
std::unique_ptr<Model> made(const std::string& config) {
  std::unique_ptr<Model> model = make_model(config, 3);
  nn::initialize(*model, 3, {.deviation = 0.3f});
  model->tie();
  return model;
}

ModelInput input_of(const Model& model, std::int64_t length = 20) {
  ModelInput input{.ids = some_ids(2, length)};
  if (model.info().kind == ModelKind::encoder_decoder) input.decoder_ids = some_ids(2, 11);
  return input;
}

TEST(LongModels, AreTheSameAfterSavingAndLoading) {
  std::vector<std::string> all = decoders();
  for (const auto& more : {encoders(), pairs()}) all.insert(all.end(), more.begin(), more.end());
  for (const std::string& config : all) {
    SCOPED_TRACE(config);
    const TemporaryFolder folder;
    const std::unique_ptr<Model> model = made(config);
    save_model(*model, folder.path("model"));
    const std::unique_ptr<Model> again = load_model(folder.path("model"));
    EXPECT_EQ(bytes_of((*model)(input_of(*model)).logits),
              bytes_of((*again)(input_of(*model)).logits));
  }
}

TEST(LongModels, DifferFromExactOnes) {
  const Tensor exact = (*made(gpt2("exact")))({.ids = some_ids(2, 20)}).logits;
  for (const std::string kind : {"longformer", "performer"}) {
    const Tensor other = (*made(gpt2(kind)))({.ids = some_ids(2, 20)}).logits;
    EXPECT_GT(largest_difference(other, exact), 1e-3) << kind;
  }
}

// The loss of one batch falls, through all parameters: those of the projections included.
TEST(LongModels, Train) {
  for (const std::string& config : {bert("longformer"), bert("linformer"), bert("performer"),
                                    gpt2("performer"), marian("linformer", "performer")}) {
    SCOPED_TRACE(config);
    const std::unique_ptr<Model> model = made(config);
    const bool classifies = model->info().kind == ModelKind::encoder;
    const Tensor labels =
        classifies ? Tensor::from(std::vector<std::int64_t>{0, 2}, {2}) : some_ids(2, 20);
    std::vector<Tensor> parameters;
    for (const nn::Parameter& p : nn::parameters(*model)) parameters.push_back(p.value);
    AdamW optimizer(parameters, {.lr = 0.01});
    double first = 0, last = 0;
    for (int step = 0; step < 12; ++step) {
      nn::Training training{.seed = 1, .step = step};
      Tape tape;
      const Tensor loss = model->loss({.ids = some_ids(2, 20)}, labels, {.training = &training});
      const Gradients gradients = tape.backward(loss);
      for (const nn::Parameter& p : nn::parameters(*model)) {
        if (p.name.find("linformer") != std::string::npos) {
          EXPECT_TRUE(gradients.contains(p.value)) << p.name;
        }
      }
      optimizer.step(gradients);
      last = values_of(loss)[0];
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.7 * first);
  }
}

TEST(LongModels, DecodeAsTheyRead) {
  for (const std::string& config : decoders()) {
    SCOPED_TRACE(config);
    const std::unique_ptr<Model> model = made(config);
    const Tensor ids = some_ids(2, 30), whole = (*model)({.ids = ids}).logits;
    nn::KvCache cache(30);
    std::vector<Tensor> parts;
    parts.push_back((*model)({.ids = slice(ids, 1, 0, 7)}, {.cache = &cache}).logits);
    for (std::int64_t i = 7; i < 30; ++i) {
      parts.push_back((*model)({.ids = slice(ids, 1, i, i + 1)}, {.cache = &cache}).logits);
    }
    EXPECT_LT(largest_difference(concat(parts, 1), whole), 2e-4);
  }
}

// Prompts of unequal length, padded on the left, and beams that change places.
TEST(LongModels, GenerateABatchAsEachAlone) {
  const std::unique_ptr<Model> model = made(gpt2("performer"));
  const std::vector<std::vector<std::int64_t>> prompts{{1, 2, 3, 4, 5, 6}, {7, 8}, {9}};
  for (const int beams : {1, 3}) {
    GenerateOptions options;
    options.max_new_tokens = 10;
    options.beams = beams;
    const auto together = generate(*model, prompts, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together[i], generate(*model, {prompts[i]}, options)[0]) << i;
    }
  }
}

TEST(LongModels, PaddingChangesNothing) {
  for (const std::string& config : encoders()) {
    SCOPED_TRACE(config);
    const std::unique_ptr<Model> model = made(config);
    const Tensor ids = some_ids(1, 20);
    std::vector<std::int64_t> mask(20, 1);
    std::fill(mask.begin() + 13, mask.end(), 0);
    const Tensor padded = (*model)({.ids = ids, .mask = Tensor::from(mask, {1, 20})}).logits;
    EXPECT_LT(largest_difference(padded, (*model)({.ids = slice(ids, 1, 0, 13)}).logits), 1e-4);
  }
}

TEST(LongModels, TellWhatIsWrong) {
  EXPECT_ERROR("attention 'fast' is none of exact, longformer", make_model(bert("fast")));
  EXPECT_ERROR("attention_options.feature is not known",
               make_model(bert("performer", R"("attention_options": {"feature": 4})")));
  EXPECT_ERROR("mixes all positions", make_model(gpt2("linformer")));
  EXPECT_ERROR("neither softmax nor relu",
               make_model(bert("performer", R"("attention_options": {"kernel": "cosine"})")));
  EXPECT_ERROR("choose exact or longformer",
               make_model(R"({"model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 32,
 "num_layers": 1, "num_heads": 4, "vocab_size": 32, "attention": "performer"})"));
}

}  // namespace
}  // namespace qkv

// Models: loading and what is refused, caches, saving. That they compute what transformers computes
// is the work of `qkv verify` (verify_test.py).
#include "qkv/models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "io/json.h"
#include "qkv/autograd.h"
#include "qkv/checkpoint.h"
#include "qkv/error.h"
#include "qkv/optim.h"
#include "qkv/random.h"
#include "support/goldens.h"
#include "support/temporary_folder.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;
using test::golden;
using test::kDecoderGoldens;
using test::kGoldens;
using test::largest_difference;
using testing::TemporaryFolder;

Tensor ids_of(std::vector<std::int64_t> ids, std::int64_t batch = 1) {
  const auto count = static_cast<std::int64_t>(ids.size());
  return Tensor::from(ids, {batch, count / batch});
}

std::vector<std::int64_t> counting(std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back((i * 37 + 11) % 96);
  return ids;
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The golden `name` with its config and tensors edited.
using Tensors = std::vector<std::pair<std::string, Tensor>>;
void write_edited(const std::string& name, const std::string& folder,
                  const std::function<void(Tensors&)>& edit_tensors,
                  const std::function<std::string(std::string)>& edit_config) {
  const Checkpoint checkpoint = Checkpoint::open(golden(name));
  Tensors tensors;
  for (const std::string& key : checkpoint.names()) tensors.emplace_back(key, checkpoint[key]);
  edit_tensors(tensors);
  save_checkpoint(folder + "/model.safetensors", tensors);
  std::ifstream in(golden(name) + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::ofstream(folder + "/config.json") << edit_config(text);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Models, EveryParameterIsNamedAsInTheFile) {
  for (const std::string& name : kGoldens) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    const Checkpoint checkpoint = Checkpoint::open(golden(name));
    std::set<std::string> names;
    model->visit(nn::Visitor([&](const std::string& key, Tensor& value, const Shape& shape) {
      EXPECT_TRUE(names.insert(key).second) << key << " is visited twice";
      EXPECT_EQ(value.shape(), shape) << key;
      EXPECT_TRUE(checkpoint.contains(key)) << key;
    }));
    EXPECT_EQ(names.size(), checkpoint.names().size());
    EXPECT_EQ(model->info().vocabulary, 96);
  }
}

TEST(Models, WhatDoesNotFitIsListedInOneError) {
  const TemporaryFolder folder;
  write_edited(
      "llama", folder.path(),
      [](Tensors& tensors) {
        std::erase_if(tensors, [](const auto& t) { return t.first == "model.norm.weight"; });
        for (auto& [name, value] : tensors) {
          if (name == "model.layers.1.mlp.up_proj.weight") value = Tensor::zeros({3, 4});
        }
        tensors.emplace_back("model.layers.7.extra", Tensor::zeros({2}));
      },
      [](std::string text) { return text; });
  const std::string message = message_of([&] { load_model(folder.path()); });
  EXPECT_THAT(message, ::testing::HasSubstr("missing (1)"));
  EXPECT_THAT(message, ::testing::HasSubstr("model.norm.weight [32]"));
  EXPECT_THAT(message, ::testing::HasSubstr("mlp.up_proj.weight is f32 [3, 4], expected [88, 32]"));
  EXPECT_THAT(message, ::testing::HasSubstr("unexpected (1)"));
  EXPECT_THAT(message, ::testing::HasSubstr("model.layers.7.extra"));
}

TEST(Models, AbsurdConfigsAreRefusedByName) {
  const std::vector<std::array<const char*, 3>> cases{
      {"\"hidden_size\": 32", "\"hidden_size\": 99999999999", "hidden_size"},
      {"\"hidden_size\": 32", "\"hidden_size\": -1", "hidden_size"},
      {"\"hidden_size\": 32", "\"hidden_size\": \"wide\"", "hidden_size"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000", "num_hidden_layers"},
      {"\"num_attention_heads\": 4", "\"num_attention_heads\": 0", "num_attention_heads"},
      {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "key heads"},
      {"\"vocab_size\": 96", "\"vocab_size\": 4294967296", "vocab_size"},
      {"\"model_type\": \"llama\"", "\"model_type\": \"lama\"", "lama"},
      {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"sillu\"", "sillu"},
      {"\"rope_type\": \"default\"", "\"rope_type\": \"twisted\"", "twisted"},
      {"\"head_dim\": 8", "\"head_dim\": 7", "even"}};
  for (const auto& [from, to, named] : cases) {
    SCOPED_TRACE(to);
    const TemporaryFolder folder;
    write_edited(
        "llama", folder.path(), [](Tensors&) {},
        [&](std::string text) { return replaced(text, from, to); });
    EXPECT_THAT(message_of([&] { load_model(folder.path()); }), ::testing::HasSubstr(named));
  }
}

TEST(Models, ArchitecturesThatAreNotSupportedAreRefusedByName) {
  const std::vector<std::array<const char*, 3>> cases{
      {"bart", "BartModel", "BartForConditionalGeneration"},
      {"bart", "BartForCausalLM", "BartForConditionalGeneration"},
      {"bart", "BartForSequenceClassification", "BartForConditionalGeneration"},
      {"marian", "MarianModel", "MarianMTModel"},
      {"t5", "T5EncoderModel", "T5ForConditionalGeneration"},
      {"bert-masked-lm", "BertLMHeadModel", "BertModel, *ForMaskedLM"},
      {"bert-model", "BertForTokenClassification", "*ForSequenceClassification"},
      {"llama", "LlamaForSequenceClassification", "LlamaForCausalLM"},
      {"gpt2", "GPT2ForSequenceClassification", "GPT2LMHeadModel, GPT2Model"},
      {"gpt2", "GPT2DoubleHeadsModel", "GPT2LMHeadModel, GPT2Model"}};
  for (const auto& [name, architecture, known] : cases) {
    SCOPED_TRACE(architecture);
    const TemporaryFolder folder;
    write_edited(
        name, folder.path(), [](Tensors&) {},
        [&](std::string text) {
          return with_key(text, "config.json", "architectures",
                          std::string("[\"") + architecture + "\"]");
        });
    const std::string message = message_of([&] { load_model(folder.path()); });
    EXPECT_THAT(message, ::testing::HasSubstr("config.json: architectures: "));
    EXPECT_THAT(message, ::testing::HasSubstr(std::string(architecture) + " is not supported"));
    EXPECT_THAT(message, ::testing::HasSubstr(known));
  }
  const std::string crossed = message_of([] {
    make_model(R"({"model_type": "gpt2", "vocab_size": 8, "add_cross_attention": true})");
  });
  EXPECT_THAT(crossed, ::testing::HasSubstr("config.json: add_cross_attention: a gpt2"));
}

TEST(Models, WhatLayersRefuseNamesTheConfig) {
  const auto llama = [](const std::string& more) {
    return message_of([&] {
      make_model(R"({"model_type": "llama", "vocab_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": 4, )" +
                 more + "}");
    });
  };
  EXPECT_THAT(llama(R"("hidden_size": 2)"), ::testing::StartsWith("config.json: "));
  EXPECT_THAT(llama(R"("hidden_size": 12)"), ::testing::StartsWith("config.json: rotary: "));
  EXPECT_THAT(llama(R"("hidden_size": 16, "hidden_act": "gleu")"),
              ::testing::StartsWith("config.json: "));
  // Once: what reads the config says so by itself.
  EXPECT_THAT(llama(R"("hidden_size": true)"),
              ::testing::StartsWith("config.json: hidden_size must be"));
  EXPECT_THAT(message_of([] {
                make_model(R"({"model_type": "t5", "vocab_size": 8, "d_model": 4, "d_kv": 2,
                  "num_layers": 1, "num_heads": 2, "d_ff": 4, "feed_forward_proj": "gated-gleu"})");
              }),
              ::testing::StartsWith("config.json: feed_forward_proj: activation 'gleu' is not "
                                    "known; there are none, relu, gelu, gelu_new, silu, "));
}

TEST(Models, LossesOfOtherClassifiersAreRefused) {
  const auto message_with = [](const std::string& more, const Tensor& labels) {
    const auto model = make_model(R"({"model_type": "bert", "vocab_size": 8, "hidden_size": 4,
      "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4,
      "max_position_embeddings": 4, "architectures": ["BertForSequenceClassification"], )" +
                                  more + "}");
    return message_of([&] { model->loss({.ids = ids_of({1, 2, 3, 4}, 2)}, labels); });
  };
  const Tensor classes = Tensor::from(std::vector<std::int64_t>{0, 0}, {2});
  const auto refuses = ::testing::HasSubstr("(problem_type) are not supported");
  EXPECT_EQ(message_with(R"("num_labels": 3)", classes), "");
  EXPECT_EQ(
      message_with(R"("num_labels": 1, "problem_type": "single_label_classification")", classes),
      "");
  EXPECT_THAT(message_with(R"("num_labels": 3)", Tensor::zeros({2})), refuses);
  EXPECT_THAT(message_with(R"("num_labels": 3)", Tensor::zeros({2, 3})), refuses);
  EXPECT_THAT(message_with(R"("num_labels": 1)", classes), refuses);
  EXPECT_THAT(message_with(R"("id2label": {"0": "score"})", classes), refuses);
  EXPECT_THAT(message_with(R"("num_labels": 3, "problem_type": "regression")", classes), refuses);
  EXPECT_THAT(
      message_with(R"("num_labels": 3, "problem_type": "multi_label_classification")", classes),
      refuses);
}

TEST(Models, ADamagedConfigIsAModelOrAnError) {
  for (const std::string name : {"llama", "bart", "t5", "longformer", "marian"}) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    write_edited(
        name, folder.path(), [](Tensors&) {}, [](std::string text) { return text; });
    std::ifstream in(golden(name) + "/config.json");
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    int refused = 0;
    for (std::uint32_t i = 0; i < 400; ++i) {
      std::string damaged = text;
      const auto words = philox({i, 0, 0, 0}, 5);
      const std::size_t at = words[0] % damaged.size();
      switch (words[1] % 3) {
        case 0: damaged[at] = static_cast<char>("0123456789-\",:e"[words[2] % 15]); break;
        case 1: damaged.insert(at, std::to_string(words[2])); break;
        default: damaged.erase(at, 1 + words[2] % 8);
      }
      std::ofstream(folder.path("config.json")) << damaged;
      refused += message_of([&] { load_model(folder.path()); }).empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 50);
  }
}

TEST(Models, BadInputIsNamed) {
  const auto gpt2 = load_model(golden("gpt2"));
  const auto has = [](const std::string& part) { return ::testing::HasSubstr(part); };
  EXPECT_THAT(message_of([&] { (*gpt2)({}); }), has("gpt2: ids must be"));
  EXPECT_THAT(message_of([&] { (*gpt2)({.ids = ids_of({1, 96})}); }), has("id 96 at position 1"));
  EXPECT_THAT(message_of([&] { (*gpt2)({.ids = ids_of({-1})}); }), has("id -1"));
  EXPECT_THAT(message_of([&] { (*gpt2)({.ids = ids_of(counting(65))}); }),
              has("65 tokens are more than the 64 positions"));
  EXPECT_THAT(message_of([&] {
                (*gpt2)({.ids = ids_of({1, 2}), .mask = Tensor::zeros({1, 3}, {DType::u8})});
              }),
              has("mask must have the shape of ids [1, 2], got [1, 3]"));
  EXPECT_THAT(message_of([&] { (*gpt2)({.ids = Tensor::zeros({1, 2})}); }), has("i32 or i64"));

  const auto llama = load_model(golden("llama"));
  nn::KvCache cache(20);
  (*llama)({.ids = ids_of({1, 2})}, {.cache = &cache});
  EXPECT_THAT(message_of([&] { (*gpt2)({.ids = ids_of({1})}, {.cache = &cache}); }),
              has("the cache is of another model"));
  const auto bert = load_model(golden("bert-model"));
  EXPECT_THAT(message_of([&] { (*bert)({.ids = ids_of({1})}, {.cache = &cache}); }), has("cache"));
  EXPECT_THAT(message_of([&] { bert->loss({.ids = ids_of({1})}, ids_of({1})); }), has("no head"));
  const auto bart = load_model(golden("bart"));
  EXPECT_THAT(message_of([&] { (*bart)({.decoder_ids = ids_of({1})}); }), has("ids or memory"));
}

TEST(Models, ACacheChangesNothing) {
  for (const std::string& name : kDecoderGoldens) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    const std::vector<std::int64_t> ids = counting(40);
    const Tensor whole = (*model)({.ids = ids_of(ids)}).logits;
    nn::KvCache cache(40);
    std::size_t at = 0;
    for (const std::size_t count : {7, 1, 1, 20, 1, 10}) {  // prefill, decode, and chunks between
      const std::vector<std::int64_t> part(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                           ids.begin() + static_cast<std::ptrdiff_t>(at + count));
      const Tensor logits = (*model)({.ids = ids_of(part)}, {.cache = &cache}).logits;
      const Tensor expected =
          slice(whole, 1, static_cast<std::int64_t>(at), static_cast<std::int64_t>(at + count));
      EXPECT_LT(largest_difference(logits, expected), 2e-5);
      at += count;
    }
    EXPECT_EQ(cache.length(), 40);
  }
}

TEST(Models, EncoderDecodersReuseTheirMemory) {
  for (const std::string name : {"bart", "marian", "t5", "t5-v1.1"}) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    Tensor mask = Tensor::full({2, 9}, 1, {DType::u8});
    mask.data<std::uint8_t>()[8] = 0;
    const Tensor source = ids_of(counting(18), 2), target = ids_of(counting(12), 2);
    const Tensor whole = (*model)({.ids = source, .mask = mask, .decoder_ids = target}).logits;
    const Tensor memory = (*model)({.ids = source, .mask = mask}).memory;
    nn::KvCache cache(6);
    for (std::int64_t t = 0; t < 6; ++t) {
      const Tensor logits =
          (*model)({.mask = mask, .decoder_ids = slice(target, 1, t, t + 1), .memory = memory},
                   {.cache = &cache})
              .logits;
      EXPECT_LT(largest_difference(logits, slice(whole, 1, t, t + 1)), 5e-5);
    }
  }
}

TEST(Models, PaddingOnTheLeftChangesNothing) {
  for (const std::string& name : kDecoderGoldens) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    const std::vector<std::int64_t> ids = counting(12);
    const Tensor alone = (*model)({.ids = ids_of(ids)}).logits;
    std::vector<std::int64_t> padded(3, 0);
    padded.insert(padded.end(), ids.begin(), ids.end());
    Tensor mask = Tensor::full({1, 15}, 1, {DType::u8});
    std::fill_n(mask.data<std::uint8_t>(), 3, std::uint8_t{0});
    const Tensor shifted = (*model)({.ids = ids_of(padded), .mask = mask}).logits;
    EXPECT_LT(largest_difference(slice(shifted, 1, 3, 15), alone), 2e-5);
  }
}

TEST(Models, SavedAndLoadedAgainIsTheSame) {
  for (const std::string& name : kGoldens) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    const auto model = load_model(golden(name));
    save_model(*model, folder.path());
    const auto again = load_model(folder.path());
    ModelInput input{.ids = ids_of(counting(8))};
    if (model->info().kind == ModelKind::encoder_decoder) input.decoder_ids = ids_of(counting(5));
    const ModelOutput a = (*model)(input), b = (*again)(input);
    EXPECT_EQ(bytes_of(a.last_hidden), bytes_of(b.last_hidden));
    EXPECT_EQ(bytes_of(a.logits), bytes_of(b.logits));  // both empty where there is no head
    EXPECT_EQ(model->config_text(), again->config_text());
  }
}

TEST(Models, WeightsConvertOnLoad) {
  const Tensor ids = ids_of(counting(8));
  const Tensor exact = (*load_model(golden("gpt2")))({.ids = ids}).logits;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto model = load_model(golden("gpt2"), {.dtype = dtype});
    for (const nn::Parameter& p : nn::parameters(*model)) EXPECT_EQ(p.value.dtype(), dtype);
    const Tensor logits = (*model)({.ids = ids}).logits;
    EXPECT_EQ(logits.dtype(), DType::f32);
    EXPECT_LT(largest_difference(logits, exact), 3e-2);
    EXPECT_GT(largest_difference(logits, exact), 0);
  }
  EXPECT_THROW(load_model(golden("gpt2"), {.dtype = DType::i32}), Error);
}

TEST(Models, MappedWeightsAreNotTrained) {
  const auto values = [](Model& model) {
    std::vector<Tensor> list;
    for (const nn::Parameter& p : nn::parameters(model)) list.push_back(p.value);
    return list;
  };
  const auto mapped = load_model(golden("gpt2"));
  EXPECT_THAT(message_of([&] { AdamW adam(values(*mapped)); }), ::testing::HasSubstr("writable"));
  const auto model = load_model(golden("gpt2"), {.writable = true});
  AdamW adam(values(*model), {.lr = 1e-2});
  const Tensor ids = ids_of(counting(16), 2);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    Tape tape;
    const Tensor loss = model->loss({.ids = ids}, ids);
    losses.push_back(test::values_of(loss)[0]);
    adam.step(tape.backward(loss));
  }
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  // What was packed for inference before is not what is used after.
  EXPECT_LT(test::values_of(model->loss({.ids = ids}, ids))[0], losses.back());
}

TEST(Models, PresetsAreModels) {
  EXPECT_EQ(nn::count_parameters(*make_model("minilm-l6", 1, DType::bf16)), 22713216);
  EXPECT_EQ(nn::count_parameters(*make_model("gpt2", 1, DType::bf16)), 124439808);
  EXPECT_EQ(model_presets().size(), 8u);
  EXPECT_THROW(make_model("gpt5"), Error);
}

TEST(Models, MeanEmbeddingLeavesPaddingOut) {
  const Tensor hidden = Tensor::from(std::vector<float>{3, 0, 0, 4, 100, 100}, {1, 3, 2});
  Tensor mask = Tensor::full({1, 3}, 1, {DType::u8});
  mask.data<std::uint8_t>()[2] = 0;
  const std::vector<float> e = mean_embedding(hidden, mask).to_vector<float>();
  EXPECT_NEAR(e[0], 0.6, 1e-6);
  EXPECT_NEAR(e[1], 0.8, 1e-6);
  EXPECT_THROW(mean_embedding(hidden, Tensor::zeros({1, 2}, {DType::u8})), Error);
}

}  // namespace
}  // namespace qkv

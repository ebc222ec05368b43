// What docs/architecture.md says that several threads may share, shared by several, and compared
// with what one thread gets. The thread sanitizer watches the same tests.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "qkv/autograd.h"
#include "qkv/checkpoint.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"
#include "qkv/random.h"
#include "qkv/threads.h"
#include "qkv/tokenizer.h"
#include "support/goldens.h"
#include "support/tiny_run.h"
#include "support/values.h"

namespace qkv::test {
namespace {

constexpr int kThreads = 4;

// body(0) .. body(kThreads - 1), which begin together.
void together(const std::function<void(int)>& body) {
  std::atomic<int> ready = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class ThreadSafety : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = num_threads();
    set_num_threads(3);
  }
  void TearDown() override { set_num_threads(before_); }

 private:
  int before_ = 1;
};

Tensor some_ids(int seed, std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows * 7; ++i) ids.push_back(5 + (i * 13 + seed) % 40);
  return Tensor::from(ids, {rows, 7});
}

// Everything one forward pass gives.
std::vector<std::vector<std::uint8_t>> forward_bytes(const Model& model, int seed) {
  const Tensor ids = some_ids(seed, 2);
  ModelInput input{.ids = ids};
  if (model.info().kind == ModelKind::encoder_decoder) input.decoder_ids = some_ids(seed + 1, 2);
  const ModelOutput output = model(input);
  std::vector<std::vector<std::uint8_t>> all;
  for (const Tensor* x : {&output.logits, &output.last_hidden, &output.pooled, &output.memory}) {
    if (x->defined()) all.push_back(bytes_of(*x));
  }
  return all;
}

// Weights are packed by whoever comes first, tables of positions are made then: all at once here.
TEST_F(ThreadSafety, OneModelServesThreads) {
  for (const std::string& name : kGoldens) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
      const bool quick = name == "gpt2" || name == "bart";
      if (dtype != DType::f32 && !quick) continue;
      SCOPED_TRACE(name + " " + to_string(dtype));
      const LoadOptions options{.dtype = dtype};
      const auto alone = load_model(golden(name), options);
      const auto shared = load_model(golden(name), options);
      std::vector<decltype(forward_bytes(*alone, 0))> expected(kThreads), got(kThreads);
      for (int i = 0; i < kThreads; ++i) expected[i] = forward_bytes(*alone, i);
      together([&](int i) { got[i] = forward_bytes(*shared, i); });
      EXPECT_EQ(got, expected);
    }
  }
}

TEST_F(ThreadSafety, OneModelGeneratesInThreads) {
  for (const char* name : {"gpt2", "llama", "gemma2", "bart", "t5"}) {
    SCOPED_TRACE(name);
    const auto alone = load_model(golden(name)), shared = load_model(golden(name));
    const auto written = [&](const Model& model, int i) {
      GenerateOptions options{.max_new_tokens = 6, .seed = static_cast<std::uint64_t>(i)};
      options.temperature = i % 2 == 0 ? 0 : 1;
      options.beams = i == 3 ? 2 : 1;
      return generate(model, {{5, 6 + i, 7}, {8 + i, 9}}, options);
    };
    std::vector<std::vector<std::vector<std::int64_t>>> expected(kThreads), got(kThreads);
    for (int i = 0; i < kThreads; ++i) expected[i] = written(*alone, i);
    together([&](int i) { got[i] = written(*shared, i); });
    EXPECT_EQ(got, expected);
  }
}

// Every thread has a tape of its own over the same parameters, while others only run the model.
TEST_F(ThreadSafety, TapesOfThreadsKnowNothingOfEachOther) {
  for (const char* name : {"gpt2", "llama"}) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    const std::vector<nn::Parameter> parameters = nn::parameters(*model);
    const auto gradients_of = [&](int i) {
      Tape tape;
      const Tensor ids = some_ids(i, 2);
      const Gradients gradients = tape.backward(model->loss({.ids = ids}, ids));
      std::vector<std::vector<std::uint8_t>> all;
      for (const nn::Parameter& p : parameters) {
        if (gradients.contains(p.value)) all.push_back(bytes_of(gradients[p.value]));
      }
      return all;
    };
    const auto run = [&](int i) { return i % 2 == 0 ? gradients_of(i) : forward_bytes(*model, i); };
    std::vector<std::vector<std::vector<std::uint8_t>>> expected(kThreads), got(kThreads);
    for (int i = 0; i < kThreads; ++i) expected[i] = run(i);
    EXPECT_FALSE(expected[0].empty());
    together([&](int i) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        got[i] = run(i);
        if (Tape::recording()) got[i].clear();
      }
    });
    EXPECT_EQ(got, expected);
  }
}

TEST_F(ThreadSafety, OneTokenizerServesThreads) {
  const TinyRun files;
  for (const TokenizerKind kind : {TokenizerKind::byte_level_bpe, TokenizerKind::unigram}) {
    const Tokenizer tokenizer = train_tokenizer({files.file("text.txt"), files.file("pairs.tsv")},
                                                {.kind = kind, .size = 300});
    const auto walk = [&](const Tokenizer& one, int i) {
      std::vector<std::string> all;
      for (int n = 0; n < 60; ++n) {
        const std::string text = "seven eight " + std::to_string(n * 37 + i) + " is three, nine" +
                                 std::string(static_cast<std::size_t>(n % 5), 'x');
        const std::vector<std::int64_t> ids = one.encode(text);
        all.push_back(one.decode(ids));
        DecodeStream stream(one);
        std::string pieces;
        for (const std::int64_t id : ids) pieces += stream.push(id);
        all.push_back(pieces + stream.finish());
        all.push_back(std::to_string(one.encode_spans(text).spans.size()));
      }
      return all;
    };
    std::vector<std::vector<std::string>> expected(kThreads), got(kThreads);
    const Tokenizer alone = train_tokenizer({files.file("text.txt"), files.file("pairs.tsv")},
                                            {.kind = kind, .size = 300});
    for (int i = 0; i < kThreads; ++i) expected[i] = walk(alone, i);
    together([&](int i) { got[i] = walk(tokenizer, i); });
    EXPECT_EQ(got, expected);
  }
}

TEST_F(ThreadSafety, OneCheckpointServesThreads) {
  const Checkpoint checkpoint = Checkpoint::open(golden("llama"));
  const auto read = [&] {
    std::vector<std::vector<std::uint8_t>> all;
    for (const std::string& name : checkpoint.names()) {
      const Tensor tensor = checkpoint[name];
      all.push_back(bytes_of(tensor));
      drop_pages(tensor);  // others read them again
    }
    return all;
  };
  const auto expected = read();
  std::vector<std::vector<std::vector<std::uint8_t>>> got(kThreads);
  together([&](int i) {
    const Checkpoint copy = checkpoint;
    got[i] = read();
    EXPECT_EQ(copy.names().size(), got[i].size());
  });
  for (const auto& one : got) EXPECT_EQ(one, expected);
}

// Reading one tensor, and making, copying and dropping views of it.
TEST_F(ThreadSafety, OneTensorIsReadByThreads) {
  Tensor x = Generator(1).normal({40, 50});
  const PackedWeight weight(Generator(2).normal({30, 50}));
  const auto use = [&] {
    Tensor sums = Tensor::zeros({40, 30});
    for (int n = 0; n < 20; ++n) {
      const Tensor copy = x, part = slice(transpose(x, 0, 1), 1, 0, 40);
      sums = add(sums, linear(contiguous(transpose(part, 0, 1)), weight));
      sums = add(sums, sum(copy));
    }
    return bytes_of(sums);
  };
  const auto expected = use();
  std::vector<std::vector<std::uint8_t>> got(kThreads);
  together([&](int i) { got[i] = use(); });
  for (const auto& one : got) EXPECT_EQ(one, expected);
}

TEST_F(ThreadSafety, TheNumberOfThreadsMayChangeMeanwhile) {
  const Tensor x = Generator(1).normal({120, 130});
  const auto expected = bytes_of(matmul(transpose(x, 0, 1), x));
  std::atomic<int> wrong = 0;
  together([&](int i) {
    for (int n = 0; n < 20; ++n) {
      set_num_threads(1 + (n + i) % 3);
      wrong += bytes_of(matmul(transpose(x, 0, 1), x)) == expected ? 0 : 1;
    }
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace qkv::test

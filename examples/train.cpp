// Train a small causal Transformer to repeat what it has read: layers, a tape, AdamW.
#include <cmath>
#include <cstdio>

#include "qkv/qkv.h"

namespace {

constexpr std::int64_t kWidth = 32, kHeads = 2, kVocabulary = 12, kLength = 16;

// [module]
struct Block final : qkv::nn::Module {
  qkv::nn::LayerNorm before_attention{kWidth, 1e-5}, before_mlp{kWidth, 1e-5};
  qkv::nn::MultiHeadAttention attention{{.hidden = kWidth, .heads = kHeads, .causal = true}};
  qkv::nn::FeedForward mlp{{.hidden = kWidth, .inner = 4 * kWidth}};

  void visit(const qkv::nn::Visitor& visitor) override {
    visitor("before_attention", before_attention);
    visitor("attention", attention);
    visitor("before_mlp", before_mlp);
    visitor("mlp", mlp);
  }
  qkv::Tensor operator()(const qkv::Tensor& x) const {
    const qkv::Tensor h = add(x, attention(before_attention(x), {}));
    return add(h, mlp(before_mlp(h)));
  }
};
// [module]

struct Copier final : qkv::nn::Module {
  qkv::nn::Embedding tokens{kVocabulary, kWidth}, positions{kLength, kWidth};
  std::vector<Block> blocks{2};
  qkv::nn::Linear head{{.inputs = kWidth, .outputs = kVocabulary}};

  void visit(const qkv::nn::Visitor& visitor) override {
    visitor("tokens", tokens);
    visitor("positions", positions);
    visitor("blocks", blocks);
    visitor("head", head);
  }
  qkv::Tensor operator()(const qkv::Tensor& ids) const {
    std::vector<std::int64_t> at;
    for (std::int64_t i = 0; i < ids.size(1); ++i) at.push_back(i);
    qkv::Tensor x = add(tokens(ids), positions(qkv::Tensor::from(at, {ids.size(1)})));
    for (const Block& block : blocks) x = block(x);
    return head(x);
  }
};

struct Batch {
  qkv::Tensor ids, targets;
};

// Each sequence is a random word of half the length, twice; only the second half can be known.
Batch draw(qkv::Generator& random, std::int64_t count) {
  const std::vector<float> values =
      random.uniform({count, kLength / 2}, 0, kVocabulary).to_vector<float>();
  std::vector<std::int64_t> ids, targets;
  for (std::int64_t b = 0; b < count; ++b) {
    const auto at = [&](std::int64_t i) {
      return static_cast<std::int64_t>(
          values[static_cast<std::size_t>(b * kLength / 2 + i % (kLength / 2))]);
    };
    for (std::int64_t i = 0; i < kLength; ++i) {
      ids.push_back(at(i));
      targets.push_back(i + 1 < kLength / 2 ? -100 : at(i + 1));  // -100: not counted
    }
  }
  return {qkv::Tensor::from(ids, {count, kLength}), qkv::Tensor::from(targets, {count, kLength})};
}

}  // namespace

int main() {
  Copier model;
  qkv::nn::initialize(model, 1, {.deviation = 0.1f});
  qkv::Generator random(2);
  double loss = 0;
  // [train]
  std::vector<qkv::Tensor> parameters;
  for (const auto& parameter : qkv::nn::parameters(model)) parameters.push_back(parameter.value);
  qkv::AdamW adam(parameters, {.lr = 3e-3, .clip_norm = 1});

  for (int step = 0; step <= 250; ++step) {
    const Batch batch = draw(random, 32);
    qkv::Tape tape;  // records what runs while it lives
    const qkv::Tensor value = qkv::cross_entropy(model(batch.ids), batch.targets);
    adam.step(tape.backward(value));
    loss = value.to_vector<float>()[0];
    if (step % 50 == 0) std::printf("step %3d: loss %.4f\n", step, loss);
  }
  // [train]
  std::printf("guessing would be %.4f\n", std::log(static_cast<double>(kVocabulary)));
  return loss < 0.1 ? 0 : 1;
}

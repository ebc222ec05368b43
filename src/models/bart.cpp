// The Transformer of 2017 as Marian and BART have it: encoder and decoder, norm after each part.
// Marian has sinusoidal positions; BART learned ones, two rows further down, and a norm after the
// embedding.
#include <algorithm>
#include <cmath>
#include <mutex>

#include "core/check.h"
#include "models/attention_choice.h"
#include "models/family.h"
#include "models/padding.h"

namespace qkv {
namespace {

constexpr double kEps = 1e-5;

// Rows of the sinusoidal table, made when they are first asked for: a config may promise more
// positions than anyone has memory for.
class Sinusoids {
 public:
  explicit Sinusoids(std::int64_t width = 2) : width_(width) {}

  // [count, width] from position `first` on.
  Tensor rows(std::int64_t first, std::int64_t count) const {
    const std::scoped_lock lock(state_->mutex);
    std::int64_t have = state_->table.defined() ? state_->table.size(0) : 0;
    if (have < first + count) {
      have = std::max<std::int64_t>(have, 64);
      while (have < first + count) have *= 2;
      state_->table = nn::sinusoidal_positions(have, width_);
    }
    return slice(state_->table, 0, first, first + count);
  }

 private:
  struct State {
    std::mutex mutex;
    Tensor table;
  };
  std::int64_t width_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// One side: embedding, positions, layers.
struct BartSide final : nn::Module {
  bool learned_positions = true, embedding_norm = true, own_embedding = false;
  double embed_scale = 1, dropout = 0;
  nn::Embedding tokens, positions;
  Sinusoids sinusoids;
  nn::LayerNorm norm;
  nn::Stack layers;

  void visit(const nn::Visitor& visitor) override {
    if (own_embedding) visitor("embed_tokens", tokens);
    if (learned_positions) visitor("embed_positions", positions);
    if (embedding_norm) visitor("layernorm_embedding", norm);
    visitor("", layers);
  }

  Tensor embed(const Tensor& ids, std::int64_t past, nn::Training* training) const {
    Tensor x = tokens(ids);
    if (embed_scale != 1) x = scale(x, embed_scale);
    const std::int64_t length = ids.size(1);
    if (learned_positions) {
      std::vector<std::int64_t> at(static_cast<std::size_t>(length));
      for (std::int64_t i = 0; i < length; ++i) at[i] = past + i + 2;  // two rows are reserved
      x = add(x, positions(Tensor::from(at, {length})));
    } else {
      x = add(x, to(sinusoids.rows(past, length), x.device()));
    }
    return nn::enter_stream(embedding_norm ? norm(x) : x, dropout, training);
  }
};

class Bart final : public Model {
 public:
  explicit Bart(const ModelSource& source) {
    const Config& c = source.config;
    info_ = source.info(ModelKind::encoder_decoder);
    info_.hidden = c.integer("d_model", 1, kMaxWidth);
    info_.max_positions = c.integer("max_position_embeddings", 1, kMaxPositions);
    info_.layers = c.integer("encoder_layers", 1, kMaxLayers);
    info_.heads = c.integer("encoder_attention_heads", 1, kMaxHeads);
    shared_ = nn::Embedding(info_.vocabulary, info_.hidden, info_.pad_id);
    build(encoder_, "encoder", source);
    build(decoder_, "decoder", source);
    has_shared_ = !source.has_checkpoint || source.stores("model.shared.weight");
    head_ = nn::Linear({info_.hidden, info_.vocabulary});
    untied_ = source.has_checkpoint && source.stores("lm_head.weight");
    has_bias_ = !source.has_checkpoint || source.stores("final_logits_bias");
  }

  void visit(const nn::Visitor& visitor) override {
    if (has_shared_) visitor("model.shared", shared_);
    visitor("model.encoder", encoder_);
    visitor("model.decoder", decoder_);
    if (untied_) visitor("lm_head.weight", head_.weight, {info_.vocabulary, info_.hidden});
    if (has_bias_) visitor("final_logits_bias", logits_bias_, {1, info_.vocabulary});
  }
  void tie() override {
    if (!has_shared_)
      shared_.weight = encoder_.own_embedding ? encoder_.tokens.weight : decoder_.tokens.weight;
    if (!encoder_.own_embedding) encoder_.tokens.weight = shared_.weight;
    if (!decoder_.own_embedding) decoder_.tokens.weight = shared_.weight;
    if (!untied_) head_.weight = decoder_.tokens.weight;
    // A constant of the checkpoint, not a parameter: nothing trains it.
    head_.bias = has_bias_ ? reshape(logits_bias_, {info_.vocabulary}) : Tensor();
  }

  ModelOutput operator()(const ModelInput& input, const ModelContext& context) const override {
    const char* name = info_.family.c_str();
    ModelOutput output;
    const Mask padding = encoder_padding(name, input);
    output.memory = input.memory.defined() ? input.memory : encode(input, padding, context);
    if (!input.decoder_ids.defined()) return output;
    output.last_hidden = decode(input, output.memory, padding, context);
    output.logits = head_(head_rows(output.last_hidden, context));
    return output;
  }

 private:
  void build(BartSide& stack, const std::string& side, const ModelSource& source) {
    const Config& c = source.config;
    const bool is_marian = info_.family == "marian", is_decoder = side == "decoder";
    const std::int64_t hidden = info_.hidden;
    stack.learned_positions = !is_marian;
    stack.embedding_norm = !is_marian;
    stack.own_embedding =
        source.has_checkpoint && source.stores("model." + side + ".embed_tokens.weight");
    stack.embed_scale =
        c.flag_or("scale_embedding", false) ? std::sqrt(static_cast<double>(hidden)) : 1;
    stack.tokens = nn::Embedding(info_.vocabulary, hidden, info_.pad_id);
    if (is_marian) {
      check(hidden % 2 == 0, "{} must be even for sinusoidal positions, got {}", c.where("d_model"),
            hidden);
      stack.sinusoids = Sinusoids(hidden);
    } else {
      stack.positions = nn::Embedding(info_.max_positions + 2, hidden);
    }
    stack.norm = nn::LayerNorm(hidden, kEps);
    const std::int64_t heads = c.integer(side + "_attention_heads", 1, kMaxHeads);
    nn::LayerConfig layer;
    layer.place = nn::NormPlace::after;
    layer.norm = {.width = hidden, .eps = kEps};
    layer.self = {.hidden = hidden,
                  .heads = heads,
                  .causal = is_decoder,
                  .dropout = dropout_rate(c, "attention_dropout", 0),
                  .out = "out_proj"};
    read_score_options(c, layer.self);
    layer.dropout = stack.dropout = dropout_rate(c, "dropout", 0.1);
    if (is_decoder) {
      layer.cross = layer.self;
      layer.cross->causal = false;
      layer.cross->cross = true;
    }
    layer.feed_forward = {.hidden = hidden,
                          .inner = c.integer(side + "_ffn_dim", 1, kMaxWidth),
                          .activation = activation_of(c, "activation_function", "gelu"),
                          .dropout = dropout_rate(c, "activation_dropout", 0)};
    const std::int64_t count = c.integer(side + "_layers", 1, kMaxLayers);
    AttentionChoice choice(c, side, info_.max_positions);
    for (std::int64_t i = 0; i < count; ++i) {
      choice.apply(layer, i);
      stack.layers.add(layer);
    }
  }

  Tensor encode(const ModelInput& input, const Mask& padding, const ModelContext& context) const {
    check_length(info_.family.c_str(), input.ids.size(1), info_.max_positions);
    return encoder_.layers(encoder_.embed(input.ids, 0, context.training),
                           {.mask = padding,
                            .side = "encoder",
                            .trace = context.encoder_trace,
                            .training = context.training});
  }

  Tensor decode(const ModelInput& input, const Tensor& memory, const Mask& padding,
                const ModelContext& context) const {
    check_ids(info_.family.c_str(), input.decoder_ids);
    const std::int64_t past = context.cache != nullptr ? context.cache->length() : 0;
    check_length(info_.family.c_str(), past + input.decoder_ids.size(1), info_.max_positions);
    nn::AttentionCall self{
        .cache = context.cache, .trace = context.trace, .training = context.training};
    nn::AttentionCall cross = self;
    cross.memory = memory;
    cross.mask = padding;
    return decoder_.layers(decoder_.embed(input.decoder_ids, past, context.training), self, cross);
  }

  nn::Embedding shared_;
  BartSide encoder_, decoder_;
  nn::Linear head_;
  Tensor logits_bias_;
  bool has_shared_ = true, untied_ = false, has_bias_ = true;
};

}  // namespace

std::unique_ptr<Model> make_bart(const ModelSource& source) {
  return std::make_unique<Bart>(source);
}

}  // namespace qkv

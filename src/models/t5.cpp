// T5: relative positions as a learned bias by distance, RMS norm before each part, unscaled scores.
// v1.1 gates its feed-forward and does not tie its head.
#include <cmath>

#include "core/check.h"
#include "models/attention_choice.h"
#include "models/family.h"
#include "models/padding.h"

namespace qkv {
namespace {

// One side: embedding, layers, and the table of distances that all layers share.
struct T5Side final : nn::Module {
  bool is_decoder = false, own_embedding = false;
  double dropout = 0;
  std::int64_t buckets = 0, heads = 0, max_distance = 0;
  nn::Embedding tokens;
  Tensor table;  // [buckets, heads]: stored with the first layer
  nn::Stack stack;

  void visit(const nn::Visitor& visitor) override {
    if (own_embedding) visitor("embed_tokens", tokens);
    visitor("block.0.layer.0.SelfAttention.relative_attention_bias.weight", table,
            {buckets, heads});
    visitor("", stack);
  }
  Tensor operator()(const Tensor& ids, nn::AttentionCall self,
                    const nn::AttentionCall& cross = {}) const {
    self.bias = Bias::relative(to(table, DType::f32), !is_decoder, max_distance);
    const Tensor x = nn::enter_stream(tokens(ids), dropout, self.training);
    return nn::dropout(stack(x, self, cross), dropout, self.training);
  }
};

class T5 final : public Model {
 public:
  explicit T5(const ModelSource& source) {
    const Config& c = source.config;
    info_ = source.info(ModelKind::encoder_decoder);
    info_.hidden = c.integer("d_model", 1, kMaxWidth);
    info_.layers = c.integer("num_layers", 1, kMaxLayers);
    info_.heads = c.integer("num_heads", 1, kMaxHeads);
    shared_ = nn::Embedding(info_.vocabulary, info_.hidden);
    build(encoder_, "encoder", source);
    build(decoder_, "decoder", source);
    has_shared_ = !source.has_checkpoint || source.stores("shared.weight");
    head_ = nn::Linear({info_.hidden, info_.vocabulary, false});
    untied_ = source.is_untied("lm_head.weight");
    const bool scales = c.flag_or("scale_decoder_outputs", c.flag_or("tie_word_embeddings", true));
    output_scale_ = scales ? 1 / std::sqrt(static_cast<double>(info_.hidden)) : 1;
  }

  void visit(const nn::Visitor& visitor) override {
    if (has_shared_) visitor("shared", shared_);
    visitor("encoder", encoder_);
    visitor("decoder", decoder_);
    if (untied_) visitor("lm_head", head_);
  }
  void tie() override {
    if (!encoder_.own_embedding) encoder_.tokens.weight = shared_.weight;
    if (!decoder_.own_embedding) decoder_.tokens.weight = shared_.weight;
    if (!untied_) head_.weight = decoder_.tokens.weight;
  }

  ModelOutput operator()(const ModelInput& input, const ModelContext& context) const override {
    ModelOutput output;
    const Mask padding = encoder_padding("t5", input);
    output.memory = input.memory.defined() ? input.memory
                                           : encoder_(input.ids, {.mask = padding,
                                                                  .side = "encoder",
                                                                  .trace = context.encoder_trace,
                                                                  .training = context.training});
    if (!input.decoder_ids.defined()) return output;
    check_ids("t5", input.decoder_ids);
    nn::AttentionCall self{
        .cache = context.cache, .trace = context.trace, .training = context.training};
    nn::AttentionCall cross = self;
    cross.memory = output.memory;
    cross.mask = padding;
    output.last_hidden = decoder_(input.decoder_ids, self, cross);
    Tensor rows = head_rows(output.last_hidden, context);
    if (output_scale_ != 1) rows = scale(rows, output_scale_);
    output.logits = head_(rows);
    return output;
  }

 private:
  void build(T5Side& side, const std::string& name, const ModelSource& source) {
    const Config& c = source.config;
    const std::int64_t hidden = info_.hidden;
    const double eps = c.number_or("layer_norm_epsilon", 1e-6, 0, 1);
    side.is_decoder = name == "decoder";
    side.own_embedding = source.has_checkpoint && source.stores(name + ".embed_tokens.weight");
    side.tokens = nn::Embedding(info_.vocabulary, hidden);
    side.heads = info_.heads;
    side.buckets = c.integer_or("relative_attention_num_buckets", 32, 2, kMaxWidth);
    side.max_distance = c.integer_or("relative_attention_max_distance", 128, 2, kMaxPositions);
    const nn::NormConfig norm{.width = hidden, .eps = eps, .rms = true};
    side.stack = nn::Stack({.layers = "block", .final_norm = "final_layer_norm", .norm = norm});
    nn::LayerConfig layer;
    layer.norm = norm;
    layer.dropout = side.dropout = dropout_rate(c, "dropout_rate", 0.1);
    layer.self = {.hidden = hidden,
                  .heads = info_.heads,
                  .head_size = c.integer("d_kv", 1, kMaxWidth),
                  .bias = false,
                  .out_bias = false,
                  .causal = side.is_decoder,
                  .scale = 1.0f,
                  .dropout = side.dropout,
                  .q = "q",
                  .k = "k",
                  .v = "v",
                  .out = "o"};
    read_score_options(c, layer.self);
    layer.self_name = "layer.0.SelfAttention";
    layer.self_norm = "layer.0.layer_norm";
    if (side.is_decoder) {
      layer.cross = layer.self;
      layer.cross->causal = false;
      layer.cross->cross = true;
      layer.cross_name = "layer.1.EncDecAttention";
      layer.cross_norm = "layer.1.layer_norm";
    }
    layer.feed_forward = feed_forward_config(c);
    const std::string last = side.is_decoder ? "layer.2" : "layer.1";
    layer.feed_forward_name = last + ".DenseReluDense";
    layer.feed_forward_norm = last + ".layer_norm";
    const std::int64_t count = side.is_decoder
                                   ? c.integer_or("num_decoder_layers", info_.layers, 1, kMaxLayers)
                                   : info_.layers;
    AttentionChoice choice(c, name, 0);
    choice.require_scores("t5");
    for (std::int64_t i = 0; i < count; ++i) {
      choice.apply(layer, i);
      side.stack.add(layer);
    }
  }

  nn::FeedForwardConfig feed_forward_config(const Config& c) const {
    // "relu", "gated-gelu" (which is the tanh form), "gated-silu", ...
    std::string act = c.text_or("feed_forward_proj", "relu");
    const bool gated = act.starts_with("gated-");
    if (gated) act = act.substr(6);
    if (gated && act == "gelu") act = "gelu_new";
    return {.hidden = info_.hidden,
            .inner = c.integer("d_ff", 1, kMaxWidth),
            .activation = activation_named(c, "feed_forward_proj", act),
            .gated = gated,
            .bias = false,
            .dropout = dropout_rate(c, "dropout_rate", 0.1),
            .up = gated ? "wi_1" : "wi",
            .gate = "wi_0",
            .down = "wo"};
  }

  nn::Embedding shared_;
  T5Side encoder_, decoder_;
  nn::Linear head_;
  bool has_shared_ = true, untied_ = false;
  double output_scale_ = 1;
};

}  // namespace

std::unique_ptr<Model> make_t5(const ModelSource& source) { return std::make_unique<T5>(source); }

}  // namespace qkv

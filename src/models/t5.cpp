// T5: relative positions as a learned bias by distance, RMS norm before each part, unscaled scores.
// v1.1 gates its feed-forward and does not tie its head.
#include <cmath>

#include "core/check.h"
#include "models/family.h"
#include "models/padding.h"

namespace qkv {
namespace {

struct T5Block final : nn::Module {
  nn::MultiHeadAttention self_attention, cross_attention;
  nn::RmsNorm self_norm, cross_norm, feed_forward_norm;
  nn::FeedForward feed_forward;
  bool is_decoder = false;

  void visit(const nn::Visitor& visitor) override {
    visitor("layer.0.SelfAttention", self_attention);
    visitor("layer.0.layer_norm", self_norm);
    if (is_decoder) {
      visitor("layer.1.EncDecAttention", cross_attention);
      visitor("layer.1.layer_norm", cross_norm);
    }
    const std::string last = is_decoder ? "layer.2" : "layer.1";
    visitor(last + ".DenseReluDense", feed_forward);
    visitor(last + ".layer_norm", feed_forward_norm);
  }
};

struct T5Stack final : nn::Module {
  bool is_decoder = false, own_embedding = false;
  std::int64_t buckets = 0, heads = 0, max_distance = 0;
  nn::Embedding tokens;
  Tensor table;  // [buckets, heads]: of the first block, used by all
  std::vector<T5Block> blocks;
  nn::RmsNorm final_norm;

  void visit(const nn::Visitor& visitor) override {
    if (own_embedding) visitor("embed_tokens", tokens);
    visitor("block.0.layer.0.SelfAttention.relative_attention_bias.weight", table,
            {buckets, heads});
    visitor("block", blocks);
    visitor("final_layer_norm", final_norm);
  }

  struct Call {
    Tensor ids{}, memory{};
    Mask self{}, cross{};
    nn::KvCache* cache = nullptr;
    nn::Trace* trace = nullptr;
  };
  Tensor operator()(const Call& run) const {
    nn::AttentionCall self{.mask = run.self, .cache = run.cache, .trace = run.trace};
    self.bias = Bias::relative(to(table, DType::f32), !is_decoder, max_distance);
    nn::AttentionCall cross{
        .memory = run.memory, .mask = run.cross, .cache = run.cache, .trace = run.trace};
    Tensor h = tokens(run.ids), branch;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const T5Block& block = blocks[i];
      self.layer = cross.layer = i;
      NormedSum in =
          branch.defined() ? block.self_norm(branch, h) : NormedSum{h, block.self_norm(h)};
      if (run.trace != nullptr) run.trace->hidden_states.push_back(in.sum);
      branch = block.self_attention(in.normed, self);
      if (is_decoder) {
        in = block.cross_norm(branch, in.sum);
        branch = block.cross_attention(in.normed, cross);
      }
      in = block.feed_forward_norm(branch, in.sum);
      h = in.sum;
      branch = block.feed_forward(in.normed);
    }
    const Tensor last = final_norm(branch, h).normed;
    if (run.trace != nullptr) run.trace->hidden_states.push_back(last);
    return last;
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
    Mask padding;
    if (input.ids.defined()) {
      check_ids("t5", input.ids);
      padding = padding_mask("t5", input.mask, input.ids);
    } else {
      check(input.memory.defined(), "t5: ids or memory are needed");
      if (input.mask.defined()) padding = padding_mask("t5", input.mask, input.mask);
    }
    output.memory =
        input.memory.defined()
            ? input.memory
            : encoder_({.ids = input.ids, .self = padding, .trace = context.encoder_trace});
    if (!input.decoder_ids.defined()) return output;
    check_ids("t5", input.decoder_ids);
    output.last_hidden = decoder_({.ids = input.decoder_ids,
                                   .memory = output.memory,
                                   .cross = padding,
                                   .cache = context.cache,
                                   .trace = context.trace});
    Tensor rows = head_rows(output.last_hidden, context);
    if (output_scale_ != 1) rows = scale(rows, output_scale_);
    output.logits = head_(rows);
    return output;
  }

 private:
  void build(T5Stack& stack, const std::string& side, const ModelSource& source) {
    const Config& c = source.config;
    const std::int64_t hidden = info_.hidden;
    const double eps = c.number_or("layer_norm_epsilon", 1e-6, 0, 1);
    stack.is_decoder = side == "decoder";
    stack.own_embedding = source.has_checkpoint && source.stores(side + ".embed_tokens.weight");
    stack.tokens = nn::Embedding(info_.vocabulary, hidden);
    stack.heads = info_.heads;
    stack.buckets = c.integer_or("relative_attention_num_buckets", 32, 2, kMaxWidth);
    stack.max_distance = c.integer_or("relative_attention_max_distance", 128, 2, kMaxPositions);
    stack.final_norm = nn::RmsNorm(hidden, eps);
    // "relu", "gated-gelu" (which is the tanh form), "gated-silu", ...
    std::string act = c.text_or("feed_forward_proj", "relu");
    const bool gated = act.starts_with("gated-");
    if (gated) act = act.substr(6);
    if (gated && act == "gelu") act = "gelu_new";
    const nn::FeedForwardConfig feed_forward{.hidden = hidden,
                                             .inner = c.integer("d_ff", 1, kMaxWidth),
                                             .activation = activation_from_string(act),
                                             .gated = gated,
                                             .bias = false,
                                             .up = gated ? "wi_1" : "wi",
                                             .gate = "wi_0",
                                             .down = "wo"};
    nn::AttentionConfig attention{.hidden = hidden,
                                  .heads = info_.heads,
                                  .head_size = c.integer("d_kv", 1, kMaxWidth),
                                  .bias = false,
                                  .out_bias = false,
                                  .causal = stack.is_decoder,
                                  .scale = 1.0f,
                                  .q = "q",
                                  .k = "k",
                                  .v = "v",
                                  .out = "o"};
    nn::AttentionConfig cross = attention;
    cross.causal = false;
    cross.cross = true;
    const std::int64_t count = stack.is_decoder
                                   ? c.integer_or("num_decoder_layers", info_.layers, 1, kMaxLayers)
                                   : info_.layers;
    for (std::int64_t i = 0; i < count; ++i) {
      T5Block block;
      block.is_decoder = stack.is_decoder;
      block.self_attention = nn::MultiHeadAttention(attention);
      if (stack.is_decoder) block.cross_attention = nn::MultiHeadAttention(cross);
      block.self_norm = block.cross_norm = block.feed_forward_norm = nn::RmsNorm(hidden, eps);
      block.feed_forward = nn::FeedForward(feed_forward);
      stack.blocks.push_back(std::move(block));
    }
  }

  nn::Embedding shared_;
  T5Stack encoder_, decoder_;
  nn::Linear head_;
  bool has_shared_ = true, untied_ = false;
  double output_scale_ = 1;
};

}  // namespace

std::unique_ptr<Model> make_t5(const ModelSource& source) { return std::make_unique<T5>(source); }

}  // namespace qkv

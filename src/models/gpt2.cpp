// GPT-2: learned positions, pre-norm, q k v in one weight stored [in, out].
#include <cmath>

#include "core/check.h"
#include "models/attention_choice.h"
#include "models/family.h"
#include "models/padding.h"

namespace qkv {
namespace {

class Gpt2 final : public Model {
 public:
  explicit Gpt2(const ModelSource& source) {
    const Config& c = source.config;
    info_ = source.info(ModelKind::decoder);
    const std::int64_t hidden = c.integer("n_embd", 1, kMaxWidth);
    const std::int64_t inner = c.integer_or("n_inner", 4 * hidden, 1, kMaxWidth);
    const double eps = c.number_or("layer_norm_epsilon", 1e-5, 0, 1);
    info_.hidden = hidden;
    info_.layers = c.integer("n_layer", 1, kMaxLayers);
    info_.heads = c.integer("n_head", 1, kMaxHeads);
    info_.max_positions = c.integer("n_positions", 1, kMaxPositions);
    base_ = source.prefix("transformer", "wte.weight");
    wte_ = nn::Embedding(info_.vocabulary, hidden);
    wpe_ = nn::Embedding(info_.max_positions, hidden);
    const Activation activation = activation_of(c, "activation_function", "gelu_new");
    const bool by_layer = c.flag_or("scale_attn_by_inverse_layer_idx", false);
    const bool scaled = c.flag_or("scale_attn_weights", true);
    const nn::NormConfig norm{.width = hidden, .eps = eps};
    embedding_dropout_ = dropout_rate(c, "embd_pdrop", 0.1);
    stack_ = nn::Stack({.layers = "h", .final_norm = "ln_f", .norm = norm});
    AttentionChoice choice(c, "", info_.max_positions);
    for (std::int64_t i = 0; i < info_.layers; ++i) {
      nn::LayerConfig layer;
      layer.norm = norm;
      layer.dropout = dropout_rate(c, "resid_pdrop", 0.1);
      layer.self = {.hidden = hidden,
                    .heads = info_.heads,
                    .fused = true,
                    .causal = true,
                    .dropout = dropout_rate(c, "attn_pdrop", 0.1),
                    .q = "c_attn",
                    .out = "c_proj"};
      read_score_options(c, layer.self);
      if (by_layer || !scaled) {
        const double base =
            scaled ? 1 / std::sqrt(static_cast<double>(hidden) / static_cast<double>(info_.heads))
                   : 1;
        layer.self.scale = static_cast<float>(by_layer ? base / static_cast<double>(i + 1) : base);
      }
      layer.feed_forward = {.hidden = hidden,
                            .inner = inner,
                            .activation = activation,
                            .transposed = true,
                            .up = "c_fc",
                            .down = "c_proj"};
      layer.self_name = "attn";
      layer.self_norm = "ln_1";
      layer.feed_forward_name = "mlp";
      layer.feed_forward_norm = "ln_2";
      choice.apply(layer, i);
      stack_.add(layer);
    }
    head_ = nn::Linear({hidden, info_.vocabulary, false});
    has_head_ = info_.architecture != "GPT2Model" || source.stores("lm_head.weight");
    untied_ = has_head_ && source.is_untied("lm_head.weight");
  }

  void visit(const nn::Visitor& visitor) override {
    visitor(base_ + "wte", wte_);
    visitor(base_ + "wpe", wpe_);
    visitor.behind(base_)("", stack_);
    if (untied_) visitor("lm_head", head_);
  }
  void tie() override {
    if (!untied_) head_.weight = wte_.weight;
  }

  ModelOutput operator()(const ModelInput& input, const ModelContext& context) const override {
    check_ids("gpt2", input.ids);
    const std::int64_t past = context.cache != nullptr ? context.cache->length() : 0;
    check_length("gpt2", past + input.ids.size(1), info_.max_positions);
    const DecoderPositions at = decoder_positions("gpt2", input.ids, input.mask, context.cache);
    ModelOutput output;
    const Tensor x = add(wte_(input.ids), wpe_(at.positions));
    output.last_hidden = stack_(nn::enter_stream(x, embedding_dropout_, context.training),
                                {.mask = at.mask,
                                 .cache = context.cache,
                                 .trace = context.trace,
                                 .training = context.training});
    if (has_head_) output.logits = head_(head_rows(output.last_hidden, context));
    return output;
  }

 private:
  std::string base_;  // "transformer." or nothing
  nn::Embedding wte_, wpe_;
  nn::Stack stack_;
  nn::Linear head_;
  double embedding_dropout_ = 0;
  bool has_head_ = true, untied_ = false;
};

}  // namespace

std::unique_ptr<Model> make_gpt2(const ModelSource& source) {
  return std::make_unique<Gpt2>(source);
}

}  // namespace qkv

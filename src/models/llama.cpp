// Llama and those built like it: rotary positions, RMS norm before each part, gated feed-forward,
// fewer key heads than query heads. Mistral adds a window, Qwen3 a norm of queries and keys, Gemma
// 2 norms after each part too, a softcap and a window in every other layer.
#include <cmath>

#include "core/check.h"
#include "models/attention_choice.h"
#include "models/family.h"
#include "models/padding.h"

namespace qkv {
namespace {

nn::RotaryConfig rotary_config(const Config& c, std::int64_t head_size, std::int64_t positions) {
  nn::RotaryConfig rotary;
  rotary.head_size = head_size;
  rotary.base = c.number_or("rope_theta", 10000, 1, 1e12);
  rotary.original_positions = positions;
  const char* key = c.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!c.has(key)) return rotary;
  const Config r = c.object(key);
  rotary.base = r.number_or("rope_theta", rotary.base, 1, 1e12);
  rotary.scaling = r.text_or("rope_type", r.text_or("type", "default"));
  rotary.factor = r.number_or("factor", 1, 1e-6, 1e6);
  rotary.low_frequency_factor = r.number_or("low_freq_factor", 1, 0, 1e6);
  rotary.high_frequency_factor = r.number_or("high_freq_factor", 4, 0, 1e6);
  rotary.beta_fast = r.number_or("beta_fast", 32, 1e-6, 1e6);
  rotary.beta_slow = r.number_or("beta_slow", 1, 1e-6, 1e6);
  rotary.truncate = r.flag_or("truncate", true);
  rotary.attention_factor = r.number_or("attention_factor", 0, 0, 1e6);
  rotary.mscale = r.number_or("mscale", 0, 0, 1e6);
  rotary.mscale_all_dim = r.number_or("mscale_all_dim", 0, 0, 1e6);
  if (rotary.scaling == "dynamic") {  // from the length in the config on, whatever else it says
    check(positions > 0, "{} is needed for {}: dynamic", c.where("max_position_embeddings"),
          r.where("rope_type"));
    return rotary;
  }
  const char* original = "original_max_position_embeddings";  // beside the object it wins
  rotary.original_positions =
      (c.has(original) ? c : r).integer_or(original, positions, 1, kMaxPositions);
  if (!r.has("factor") && rotary.scaling == "yarn" && positions > 0) {
    rotary.factor = static_cast<double>(positions) / static_cast<double>(rotary.original_positions);
  }
  return rotary;
}

// What a family's configs mean where they do not say, as Hugging Face writes all of it.
struct LlamaDefaults {
  std::int64_t head_size = 0, kv_heads = 0;  // 0: what the heads imply
  std::int64_t window = 0, full_layers = 0;
  double query_scalar = 0, score_softcap = 0, logit_softcap = 0;
  std::int64_t padding = -1;
};
LlamaDefaults defaults_of(const std::string& family) {
  if (family == "mistral") return {.kv_heads = 8, .window = 4096};
  if (family == "qwen3")
    return {.head_size = 128, .kv_heads = 32, .window = 4096, .full_layers = 28};
  if (family == "gemma2") {
    return {.head_size = 256,
            .kv_heads = 4,
            .window = 4096,
            .query_scalar = 256,
            .score_softcap = 50,
            .logit_softcap = 30,
            .padding = 0};
  }
  return {};
}
// A key that is null is switched off; one that is not there has the family's default.
template <class T>
T unless_null(const Config& c, const char* key, T fallback) {
  return c.mentions(key) ? T{0} : fallback;
}

class Llama final : public Model {
 public:
  explicit Llama(const ModelSource& source) {
    const Config& c = source.config;
    info_ = source.sized_info(ModelKind::decoder);
    info_.max_positions = c.integer_or("max_position_embeddings", 0, 0, kMaxPositions);
    const bool is_gemma = info_.family == "gemma2";
    const std::int64_t hidden = info_.hidden;
    defaults_ = defaults_of(info_.family);
    const std::int64_t own_size = unless_null(c, "head_dim", defaults_.head_size);
    const std::int64_t head_size =
        c.integer_or("head_dim", own_size > 0 ? own_size : hidden / info_.heads, 1, kMaxWidth);
    const nn::RotaryConfig rotary = rotary_config(c, head_size, info_.max_positions);
    rotary_ = nn::Rotary(rotary);
    AttentionChoice choice(c, "", info_.max_positions);
    if (rotary.scaling == "dynamic") info_.max_positions = 0;  // made to go beyond them
    base_ = source.prefix("model", "embed_tokens.weight");
    embed_ = nn::Embedding(info_.vocabulary, hidden,
                           c.mentions("pad_token_id") ? info_.pad_id : defaults_.padding);
    const double eps = c.number_or("rms_norm_eps", 1e-6, 0, 1), offset = is_gemma ? 1 : 0;
    const nn::NormConfig norm{.width = hidden, .eps = eps, .rms = true, .weight_offset = offset};
    stack_ = nn::Stack({.final_norm = "norm", .norm = norm});
    for (std::int64_t i = 0; i < info_.layers; ++i) {
      nn::LayerConfig layer;
      layer.norm = norm;
      layer.self = attention_config(c, i, head_size);
      layer.feed_forward = feed_forward_config(c);
      layer.self_norm = "input_layernorm";
      layer.feed_forward_name = "mlp";
      layer.feed_forward_norm = "post_attention_layernorm";
      if (is_gemma) {
        layer.place = nn::NormPlace::around;
        layer.after_self_norm = "post_attention_layernorm";
        layer.feed_forward_norm = "pre_feedforward_layernorm";
        layer.after_feed_forward_norm = "post_feedforward_layernorm";
      }
      choice.apply(layer, i);
      stack_.add(layer);
    }
    embed_scale_ = is_gemma ? std::sqrt(static_cast<double>(hidden)) : 1;
    final_softcap_ =
        c.number_or("final_logit_softcapping",
                    unless_null(c, "final_logit_softcapping", defaults_.logit_softcap), 0, 1e6);
    head_ = nn::Linear({hidden, info_.vocabulary, false});
    untied_ = source.has_checkpoint ? source.stores("lm_head.weight")
                                    : !c.flag_or("tie_word_embeddings", is_gemma);
  }

  void visit(const nn::Visitor& visitor) override {
    visitor(base_ + "embed_tokens", embed_);
    visitor.behind(base_)("", stack_);
    if (untied_) visitor("lm_head", head_);
  }
  void tie() override {
    if (!untied_) head_.weight = embed_.weight;
  }

  ModelOutput operator()(const ModelInput& input, const ModelContext& context) const override {
    const char* name = info_.family.c_str();
    check_ids(name, input.ids);
    const std::int64_t past = context.cache != nullptr ? context.cache->length() : 0;
    check_length(name, past + input.ids.size(1), info_.max_positions);
    const DecoderPositions at = decoder_positions(name, input.ids, input.mask, context.cache);
    const nn::RotaryTables tables = at.positions.device() == kCpu
                                        ? rotary_(at.positions)
                                        : rotary_(at.positions, context.cache->capacity());
    Tensor h = embed_(input.ids);
    if (embed_scale_ != 1) h = scale(h, embed_scale_);
    ModelOutput output;
    output.last_hidden =
        stack_(nn::enter_stream(h, 0, context.training), {.mask = at.mask,
                                                          .rotary = &tables,
                                                          .cache = context.cache,
                                                          .trace = context.trace,
                                                          .training = context.training});
    output.logits = head_(head_rows(output.last_hidden, context));
    if (final_softcap_ > 0) {
      output.logits = scale(tanh(scale(output.logits, 1 / final_softcap_)), final_softcap_);
    }
    return output;
  }

 private:
  nn::FeedForwardConfig feed_forward_config(const Config& c) const {
    const bool is_gemma = info_.family == "gemma2";
    return {.hidden = info_.hidden,
            .inner = c.integer("intermediate_size", 1, kMaxWidth),
            .activation = is_gemma ? activation_of(c, "hidden_activation", "gelu_pytorch_tanh")
                                   : activation_of(c, "hidden_act", "silu"),
            .gated = true,
            .bias = c.flag_or("mlp_bias", false),
            .up = "up_proj",
            .gate = "gate_proj",
            .down = "down_proj"};
  }

  nn::AttentionConfig attention_config(const Config& c, std::int64_t layer,
                                       std::int64_t head_size) const {
    nn::AttentionConfig attention;
    attention.hidden = info_.hidden;
    attention.heads = info_.heads;
    const std::int64_t kv_heads = unless_null(c, "num_key_value_heads", defaults_.kv_heads);
    attention.kv_heads =
        c.integer_or("num_key_value_heads", kv_heads > 0 ? kv_heads : info_.heads, 1, kMaxHeads);
    attention.head_size = head_size;
    // Qwen2 and Qwen 1.5 have biases on q, k, v alone; Llama on all four or none.
    attention.bias = c.flag_or("attention_bias", false);
    attention.out_bias = attention.bias;
    attention.causal = true;
    attention.dropout = dropout_rate(c, "attention_dropout", 0);
    const double scalar = c.number_or("query_pre_attn_scalar", defaults_.query_scalar, 1e-6, 1e9);
    if (scalar > 0) attention.scale = static_cast<float>(1 / std::sqrt(scalar));
    attention.softcap =
        static_cast<float>(unless_null(c, "attn_logit_softcapping", defaults_.score_softcap));
    read_score_options(c, attention);
    if (info_.family == "qwen3") attention.qk_norm_eps = c.number_or("rms_norm_eps", 1e-6, 0, 1);
    const std::int64_t window = c.integer_or(
        "sliding_window", unless_null(c, "sliding_window", defaults_.window), 0, kMaxPositions);
    const std::vector<std::string> types = c.texts("layer_types");
    check(types.empty() || types.size() == static_cast<std::size_t>(info_.layers),
          "{} has {} entries for {} layers", c.where("layer_types"), types.size(), info_.layers);
    bool slides = window > 0 && info_.family != "llama";
    if (!types.empty()) {
      slides = types[layer] == "sliding_attention";
    } else if (info_.family == "gemma2") {
      slides = layer % 2 == 0;
    } else if (info_.family == "qwen3") {
      slides = c.flag_or("use_sliding_window", false) &&
               layer >= c.integer_or("max_window_layers", defaults_.full_layers, 0, kMaxLayers);
    }
    attention.window = slides ? window : 0;
    return attention;
  }

  std::string base_;  // "model." or nothing
  nn::Embedding embed_;
  nn::Stack stack_;
  nn::Linear head_;
  nn::Rotary rotary_;
  LlamaDefaults defaults_;
  double embed_scale_ = 1, final_softcap_ = 0;
  bool untied_ = false;
};

}  // namespace

std::unique_ptr<Model> make_llama(const ModelSource& source) {
  return std::make_unique<Llama>(source);
}

}  // namespace qkv

// BERT and the encoders built like it: RoBERTa (positions count from the padding id), DistilBERT
// (no token types, other names), Longformer (attention within a window). With `is_decoder` BERT and
// RoBERTa see what came before, and nothing else.
#include <algorithm>

#include "core/check.h"
#include "models/attention_choice.h"
#include "models/family.h"
#include "models/padding.h"

namespace qkv {
namespace {

// How a family spells its parts.
struct BertNames {
  const char *layers, *q, *k, *v, *attention_out, *attention_norm, *up, *down, *out_norm;
};
constexpr BertNames kBert{
    "encoder.layer",        "attention.self.query",   "attention.self.key",
    "attention.self.value", "attention.output.dense", "attention.output.LayerNorm",
    "intermediate.dense",   "output.dense",           "output.LayerNorm"};
constexpr BertNames kDistilBert{"transformer.layer", "attention.q_lin",   "attention.k_lin",
                                "attention.v_lin",   "attention.out_lin", "sa_layer_norm",
                                "ffn.lin1",          "ffn.lin2",          "output_layer_norm"};

enum class Head : std::uint8_t { none, masked_lm, classifier };

Head head_of(const std::string& architecture) {
  if (architecture.ends_with("ForMaskedLM") || architecture.ends_with("ForPreTraining")) {
    return Head::masked_lm;
  }
  if (architecture.ends_with("ForSequenceClassification")) return Head::classifier;
  check(architecture.ends_with("Model"),
        "architecture {} is not supported; there are Model, ForMaskedLM, ForPreTraining and "
        "ForSequenceClassification",
        architecture);
  return Head::none;
}

class Bert final : public Model {
 public:
  explicit Bert(const ModelSource& source) {
    const Config& c = source.config;
    info_ = source.sized_info(ModelKind::encoder);
    const std::string& family = info_.family;
    names_ = family == "distilbert" ? kDistilBert : kBert;
    counts_from_padding_ = family == "roberta" || family == "longformer";
    head_kind_ = head_of(info_.architecture);
    prefix_ = head_kind_ == Head::none && !source.has_checkpoint
                  ? ""
                  : source.prefix(family, "embeddings.word_embeddings.weight");
    build_embeddings(source);
    build_layers(c);
    build_head(source);
  }

  void visit(const nn::Visitor& visitor) override {
    visitor(prefix_ + "embeddings.word_embeddings", words_);
    visitor(prefix_ + "embeddings.position_embeddings", positions_);
    if (has_types_) visitor(prefix_ + "embeddings.token_type_embeddings", types_);
    visitor(prefix_ + "embeddings.LayerNorm", embedding_norm_);
    visitor.behind(prefix_)("", stack_);
    if (has_pooler_) visitor(prefix_ + "pooler.dense", pooler_);
    if (head_kind_ != Head::none) visit_head(visitor);
  }
  void tie() override {
    if (head_kind_ == Head::masked_lm && !untied_) decoder_.weight = words_.weight;
  }

  ModelOutput operator()(const ModelInput& input, const ModelContext& context) const override {
    const char* name = info_.family.c_str();
    check_ids(name, input.ids);
    check_length(name, input.ids.size(1), info_.max_positions);
    check(context.cache == nullptr, "{}: an encoder has no use for a cache", name);
    const Mask mask = padding_mask(name, input.mask, input.ids);
    nn::AttentionCall call{
        .mask = mask, .side = "encoder", .trace = context.trace, .training = context.training};
    if (input.global.defined()) call.global = to(input.global, DType::boolean);
    // What a classifier reads has to see all.
    if (info_.family == "longformer" && head_kind_ == Head::classifier && !input.global.defined()) {
      call.global = first_position(input.ids.shape());
    }
    if (info_.family == "longformer" && input.mask.defined()) {
      call.visible = reshape(to(to(input.mask, DType::boolean), DType::f32),
                             {input.ids.size(0), input.ids.size(1), 1});
    }
    const Tensor x = stack_(nn::enter_stream(embed(input), dropout_, context.training), call);
    ModelOutput output;
    output.last_hidden = x;
    if (has_pooler_) output.pooled = pooler_(first_token(x), Activation::tanh);
    if (head_kind_ == Head::masked_lm) {
      // RoBERTa's head has gelu, whatever the layers have.
      const Activation activation = counts_from_padding_ ? Activation::gelu : activation_;
      output.logits = decoder_(transform_norm_(transform_(x, activation)));
    } else if (head_kind_ == Head::classifier) {
      output.logits = classify(output, context.training);
    }
    return output;
  }

 private:
  void build_embeddings(const ModelSource& source) {
    const Config& c = source.config;
    const bool is_distil = info_.family == "distilbert";
    info_.max_positions = c.integer("max_position_embeddings", 1, kMaxPositions);
    eps_ = is_distil ? 1e-12 : c.number_or("layer_norm_eps", 1e-12, 0, 1);
    activation_ = activation_of(c, is_distil ? "activation" : "hidden_act", "gelu");
    const std::int64_t hidden = info_.hidden;
    check(!counts_from_padding_ || info_.pad_id >= 0, "{}: {} is needed to count positions",
          info_.family, c.where("pad_token_id"));
    // The row of the padding id has no gradient.
    words_ = nn::Embedding(info_.vocabulary, hidden, c.mentions("pad_token_id") ? info_.pad_id : 0);
    positions_ =
        nn::Embedding(info_.max_positions, hidden, counts_from_padding_ ? info_.pad_id : -1);
    if (counts_from_padding_) info_.max_positions -= info_.pad_id + 1;
    has_types_ = !is_distil;
    if (has_types_) {
      types_ = nn::Embedding(c.integer_or("type_vocab_size", 2, 1, kMaxWidth), hidden);
    }
    embedding_norm_ = nn::LayerNorm(hidden, eps_);
  }

  void build_layers(const Config& c) {
    const std::int64_t hidden = info_.hidden;
    const bool is_longformer = info_.family == "longformer";
    std::vector<std::int64_t> windows = c.integers("attention_window", 2, kMaxPositions);
    if (windows.size() == 1) windows.resize(static_cast<std::size_t>(info_.layers), windows[0]);
    check(!is_longformer || windows.size() == static_cast<std::size_t>(info_.layers),
          "{} has {} entries for {} layers", c.where("attention_window"), windows.size(),
          info_.layers);
    const std::int64_t inner =
        c.integer(c.has("hidden_dim") ? "hidden_dim" : "intermediate_size", 1, kMaxWidth);
    const bool is_distil = info_.family == "distilbert";
    dropout_ = dropout_rate(c, is_distil ? "dropout" : "hidden_dropout_prob", 0.1);
    classifier_dropout_ = is_distil ? dropout_rate(c, "seq_classif_dropout", 0.2)
                                    : dropout_rate(c, "classifier_dropout", dropout_);
    stack_ = nn::Stack({.layers = names_.layers});
    nn::LayerConfig layer;
    layer.dropout = dropout_;
    layer.place = nn::NormPlace::after;
    layer.norm = {.width = hidden, .eps = eps_};
    layer.self = {.hidden = hidden,
                  .heads = info_.heads,
                  .causal = is_decoder(c),
                  .dropout = dropout_rate(
                      c, is_distil ? "attention_dropout" : "attention_probs_dropout_prob", 0.1),
                  .q = names_.q,
                  .k = names_.k,
                  .v = names_.v,
                  .out = names_.attention_out};
    read_score_options(c, layer.self);
    layer.feed_forward = {.hidden = hidden,
                          .inner = inner,
                          .activation = activation_,
                          .up = names_.up,
                          .down = names_.down};
    layer.self_name = "";
    layer.self_norm = names_.attention_norm;
    layer.feed_forward_norm = names_.out_norm;
    AttentionChoice choice(c, "", info_.max_positions);
    for (std::int64_t i = 0; i < info_.layers; ++i) {
      if (is_longformer) {
        layer.attention = std::make_shared<nn::LongformerAttention>(
            layer.self, nn::LongformerConfig{.window = windows[i], .global_projections = true});
      } else {
        choice.apply(layer, i);
      }
      stack_.add(layer);
    }
  }

  bool is_decoder(const Config& c) const {
    const bool may_be = info_.family == "bert" || info_.family == "roberta";
    return may_be && c.flag_or("is_decoder", false);
  }

  void build_head(const ModelSource& source) {
    const std::int64_t hidden = info_.hidden;
    // A pooler is used by what stores one; RoBERTa's classifier has its own.
    const bool may_pool = info_.family != "distilbert" && head_kind_ != Head::masked_lm;
    has_pooler_ =
        may_pool && (source.has_checkpoint ? source.stores(prefix_ + "pooler.dense.weight")
                                           : !counts_from_padding_);
    if (has_pooler_) pooler_ = nn::Linear({hidden, hidden});
    if (head_kind_ == Head::masked_lm) {
      transform_ = nn::Linear({hidden, hidden});
      transform_norm_ = nn::LayerNorm(hidden, eps_);
      decoder_ = nn::Linear({hidden, info_.vocabulary});
      untied_ = source.is_untied(decoder_name() + ".weight");
      // A tied head's bias has two names for one tensor.
      owns_bias_ = untied_ && (source.has_checkpoint ? source.stores(decoder_name() + ".bias")
                                                     : info_.family != "distilbert");
    } else if (head_kind_ == Head::classifier) {
      if (info_.classes == 0) info_.classes = 2;
      transform_ = nn::Linear({hidden, hidden});
      decoder_ = nn::Linear({hidden, info_.classes});
    }
  }

  std::string decoder_name() const {
    if (info_.family == "distilbert") return "vocab_projector";
    return counts_from_padding_ ? "lm_head.decoder" : "cls.predictions.decoder";
  }

  void visit_head(const nn::Visitor& visitor) {
    const bool is_distil = info_.family == "distilbert";
    if (head_kind_ == Head::classifier) {
      if (is_distil) visitor("pre_classifier", transform_);
      if (counts_from_padding_) visitor("classifier.dense", transform_);
      visitor(counts_from_padding_ ? "classifier.out_proj" : "classifier", decoder_);
      return;
    }
    const std::int64_t classes = info_.vocabulary;
    if (is_distil) {
      visitor("vocab_transform", transform_);
      visitor("vocab_layer_norm", transform_norm_);
    } else if (counts_from_padding_) {
      visitor("lm_head.dense", transform_);
      visitor("lm_head.layer_norm", transform_norm_);
      visitor("lm_head.bias", owns_bias_ ? unused_bias_ : decoder_.bias, {classes});
    } else {
      visitor("cls.predictions.transform.dense", transform_);
      visitor("cls.predictions.transform.LayerNorm", transform_norm_);
      visitor("cls.predictions.bias", owns_bias_ ? unused_bias_ : decoder_.bias, {classes});
    }
    if (untied_) visitor(decoder_name() + ".weight", decoder_.weight, {classes, info_.hidden});
    if (is_distil || owns_bias_) visitor(decoder_name() + ".bias", decoder_.bias, {classes});
  }

  Tensor position_ids(const ModelInput& input) const {
    const std::int64_t batch = input.ids.size(0), length = input.ids.size(1);
    std::vector<std::int64_t> at(static_cast<std::size_t>(length));
    for (std::int64_t i = 0; i < length; ++i) at[i] = i;
    if (!counts_from_padding_) return Tensor::from(at, {length});
    const std::vector<std::int64_t> ids = to(input.ids, DType::i64).to_vector<std::int64_t>();
    at.resize(ids.size());
    for (std::int64_t b = 0; b < batch; ++b) {
      std::int64_t seen = 0;
      for (std::int64_t i = b * length; i < (b + 1) * length; ++i) {
        at[i] = ids[i] == info_.pad_id ? info_.pad_id : ++seen + info_.pad_id;
      }
    }
    return Tensor::from(at, {batch, length});
  }

  Tensor embed(const ModelInput& input) const {
    Tensor x = add(words_(input.ids), positions_(position_ids(input)));
    if (has_types_) {
      Tensor types = input.token_types;
      if (!types.defined()) types = Tensor::zeros(input.ids.shape(), {DType::i64});
      check(types.shape() == input.ids.shape(),
            "{}: token_types must have the shape of ids {}, got {}", info_.family,
            input.ids.shape(), types.shape());
      x = add(x, types_(types));
    }
    return embedding_norm_(x);
  }

  static Tensor first_position(const Shape& shape) {
    Tensor chosen = Tensor::zeros(shape, {DType::boolean});
    for (std::int64_t b = 0; b < shape[0]; ++b) chosen.data<bool>()[b * shape[1]] = true;
    return chosen;
  }

  static Tensor first_token(const Tensor& x) {
    return reshape(slice(x, 1, 0, 1), {x.size(0), x.size(2)});
  }

  Tensor classify(const ModelOutput& output, nn::Training* training) const {
    const auto thin = [&](const Tensor& x) {
      return nn::dropout(x, classifier_dropout_, training);
    };
    if (info_.family == "distilbert") {
      return decoder_(thin(transform_(first_token(output.last_hidden), Activation::relu)));
    }
    if (counts_from_padding_) {
      const Tensor first = thin(first_token(output.last_hidden));
      return decoder_(thin(transform_(first, Activation::tanh)));
    }
    check(output.pooled.defined(), "bert: the classifier needs pooler.dense, which is not stored");
    return decoder_(thin(output.pooled));
  }

  BertNames names_ = kBert;
  std::string prefix_;
  bool counts_from_padding_ = false, has_types_ = true, has_pooler_ = false;
  bool untied_ = false, owns_bias_ = false;
  Head head_kind_ = Head::none;
  double eps_ = 1e-12, dropout_ = 0, classifier_dropout_ = 0;
  Activation activation_ = Activation::gelu;
  nn::Embedding words_, positions_, types_;
  nn::LayerNorm embedding_norm_, transform_norm_;
  nn::Stack stack_;
  nn::Linear pooler_, transform_, decoder_;
  Tensor unused_bias_;  // of a head that has its own; kept for who saves what was loaded
};

}  // namespace

std::unique_ptr<Model> make_bert(const ModelSource& source) {
  return std::make_unique<Bert>(source);
}

}  // namespace qkv

// What a family of models is made from, and the functions that make them; model.cpp has the table.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "qkv/activation.h"
#include "qkv/error.h"
#include "qkv/models/model.h"

namespace qkv {

// Bounds of what a config may ask for: beyond any model there is, far below what overflows.
inline constexpr std::int64_t kMaxWidth = 1 << 18, kMaxLayers = 1 << 12, kMaxHeads = 1 << 14;
inline constexpr std::int64_t kMaxVocabulary = 1 << 24, kMaxPositions = std::int64_t{1} << 31;

struct ModelSource {
  Config config;
  std::optional<Config> generation{};  // generation_config.json, where there is one
  std::string architecture;
  // Whether the checkpoint stores this tensor; without a checkpoint, whether the config implies it.
  std::function<bool(const std::string& name)> stores;
  bool has_checkpoint = false;

  // "prefix." when the checkpoint puts the base model behind it, else "".
  std::string prefix(const std::string& name, const std::string& witness) const {
    if (!has_checkpoint) return name + ".";
    return stores(name + "." + witness) ? name + "." : "";
  }
  // Whether a tensor that may be tied is stored on its own.
  bool is_untied(const std::string& name) const {
    return has_checkpoint ? stores(name) : !config.flag_or("tie_word_embeddings", true);
  }
  ModelInfo info(ModelKind kind) const;
  // The same for families that say hidden size, layers and heads under the usual names: Error when
  // one is missing.
  ModelInfo sized_info(ModelKind kind) const;
};

std::unique_ptr<Model> make_bert(const ModelSource& source);  // and RoBERTa, DistilBERT, Longformer
std::unique_ptr<Model> make_gpt2(const ModelSource& source);
std::unique_ptr<Model> make_llama(const ModelSource& source);  // and Mistral, Qwen3, Gemma 2
std::unique_ptr<Model> make_bart(const ModelSource& source);   // and Marian
std::unique_ptr<Model> make_t5(const ModelSource& source);

// What a config says of dropout in training.
inline double dropout_rate(const Config& config, const std::string& key, double fallback) {
  return config.number_or(key, fallback, 0, 0.999);
}

// The activation of this name, which `key` of the config gave.
inline Activation activation_named(const Config& config, const std::string& key,
                                   const std::string& name) {
  try {
    return activation_from_string(name);
  } catch (const Error& error) {
    throw Error(config.where(key) + ": " + error.what());
  }
}
inline Activation activation_of(const Config& config, const std::string& key,
                                const std::string& fallback) {
  return activation_named(config, key, config.text_or(key, fallback));
}

// What any family can be told about its scores, beyond what its own configs say: keys of ours.
inline void read_score_options(const Config& c, nn::AttentionConfig& attention) {
  if (c.has("attention_scale")) {
    attention.scale = static_cast<float>(c.number("attention_scale", 1e-9, 1e9));
  }
  attention.softcap =
      static_cast<float>(c.number_or("attn_logit_softcapping", attention.softcap, 0, 1e6));
  if (c.flag_or("qk_norm", false)) attention.qk_norm_eps = 1e-6;
}

// The rows whose logits are wanted: all, or the last of each sequence.
inline Tensor head_rows(const Tensor& hidden, const ModelContext& context) {
  const std::int64_t length = hidden.size(1);
  return context.last_logits_only ? slice(hidden, 1, length - 1, length) : hidden;
}

}  // namespace qkv

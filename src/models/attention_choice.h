// Which self-attention the layers of a model have: keys of ours that any family may have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/json.h"
#include "qkv/long_attention.h"

namespace qkv {

// "attention" is "exact", "longformer", "linformer" or "performer"; "encoder_attention" and
// "decoder_attention" say it for one side. "attention_options" is an object with
//   longformer: window, dilation (one, or one per head), global_tokens, global_projections
//   linformer:  length, max_length, sharing ("none", "headwise", "key-value", "layerwise")
//   performer:  features, kernel ("softmax", "relu"), redraw, seed
class AttentionChoice {
 public:
  // `side` is "encoder", "decoder", or nothing for a model of one stack. `positions` is what
  // max_length is when the config does not say; 0 = nothing is.
  AttentionChoice(const Config& config, const std::string& side, std::int64_t positions);

  bool is_exact() const { return kind_ == Kind::exact; }
  // An Error where the layers add a bias to scores: Performer and Linformer have none to add to.
  void require_scores(const std::string& family) const;
  // Makes the attention of layer `index` from layer.self; layers are asked for in order.
  void apply(nn::LayerConfig& layer, std::int64_t index);

 private:
  enum class Kind : std::uint8_t { exact, longformer, linformer, performer };

  Kind kind_ = Kind::exact;
  nn::LongformerConfig longformer_;
  nn::LinformerConfig linformer_;
  nn::PerformerConfig performer_;
  std::shared_ptr<nn::LinformerProjection> projection_;  // of the first layer
};

}  // namespace qkv

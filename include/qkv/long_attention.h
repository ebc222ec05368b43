// Three ways around the quadratic cost of self-attention, each in the place of
// nn::MultiHeadAttention. docs/long.md says which to choose when.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qkv/linear_attention.h"
#include "qkv/nn.h"

namespace qkv::nn {

struct LongformerConfig {
  std::int64_t window = 512;              // a query sees |i - j| <= window / 2
  std::vector<std::int64_t> dilations{};  // by head: every d-th position of a window d times as
                                          // wide; empty = 1, one entry = all heads
  std::int64_t global_tokens = 0;         // so many at the front see, and are seen by, all
  // Global positions look through projections of their own, as Hugging Face's checkpoints have it.
  bool global_projections = false;
};
// Attention within a window (Beltagy et al. 2020): a mask of the exact kernel, which never touches
// tiles outside of it. Uses `global` and `visible` of the call. Causal too; global positions with
// projections of their own, and with dilation, are not.
class LongformerAttention final : public ProjectedAttention {
 public:
  LongformerAttention(const AttentionConfig& config, const LongformerConfig& longformer);
  void visit(const Visitor& visitor) override;
  Tensor operator()(const Tensor& x, const AttentionCall& call) const override;

 private:
  bool is_dilated() const;
  Mask global_mask(const AttentionCall& call) const;
  Tensor attend_to(const Heads& heads, const AttentionCall& call) const;
  Tensor attend_dilated(const Heads& heads, const AttentionCall& call) const;
  Tensor attend_to_cache(const Heads& heads, const AttentionCall& call) const;
  Tensor attend_globally(const Tensor& x, const Tensor& local, const AttentionCall& call) const;

  LongformerConfig longformer_;
  Linear q_global_, k_global_, v_global_;
};

// Which of the projections along the sequence are one and the same.
enum class LinformerSharing : std::uint8_t { none, heads, key_value, layers };
// "none", "headwise", "key-value", "layerwise"; Error for anything else.
LinformerSharing linformer_sharing_from_string(const std::string& name);

struct LinformerConfig {
  std::int64_t length = 256;      // k: so many rows keys and values are projected to
  std::int64_t max_length = 512;  // n: the longest input
  LinformerSharing sharing = LinformerSharing::heads;
};
// E and F of a layer: [k, n], or [key heads, k, n] when nothing is shared. Shorter inputs use the
// first columns.
class LinformerProjection final : public Module {
 public:
  LinformerProjection(const LinformerConfig& config, std::int64_t key_heads);
  void visit(const Visitor& visitor) override;
  // values is keys where they are shared.
  Tensor for_keys(std::int64_t length) const;
  Tensor for_values(std::int64_t length) const;

  Tensor keys, values;

 private:
  Shape shape_;
  bool shares_ = false;
};
// softmax(Q (E K)^T) F V (Wang et al. 2020).
class LinformerAttention final : public ProjectedAttention {
 public:
  // `shared` is the projection of the first layer, where layers share it; that one names it.
  LinformerAttention(const AttentionConfig& config, const LinformerConfig& linformer,
                     std::shared_ptr<LinformerProjection> shared = {});
  void visit(const Visitor& visitor) override;
  Tensor operator()(const Tensor& x, const AttentionCall& call) const override;
  const std::shared_ptr<LinformerProjection>& projection() const { return projection_; }

 private:
  LinformerConfig linformer_;
  std::shared_ptr<LinformerProjection> projection_;
  bool owns_ = true;
};

struct PerformerConfig {
  std::int64_t features = 256;
  FeatureKind kind = FeatureKind::softmax;
  std::uint64_t seed = 0;   // of the directions of layer 0; others draw their own
  std::int64_t redraw = 0;  // new directions after so many training steps; 0 = never
};
// Attention by random features (Choromanski et al. 2021): causal or not, linear in the length. With
// a cache it carries sums of constant size. Directions depend on the seed, the layer and the step
// alone: nothing is stored, and outside of training they are those of step 0. Weights are never
// formed, so none are dropped out, and no statistics are told.
class PerformerAttention final : public ProjectedAttention {
 public:
  PerformerAttention(const AttentionConfig& config, const PerformerConfig& performer,
                     std::int64_t layer);
  Tensor operator()(const Tensor& x, const AttentionCall& call) const override;
  // f32 [features, head size] of the n-th draw, n = step / redraw.
  Tensor directions(std::int64_t draw, Device device = kCpu) const;

 private:
  struct Drawn;
  PerformerConfig performer_;
  std::int64_t layer_;
  std::shared_ptr<Drawn> drawn_;  // the last draw, which most calls ask for again
};

}  // namespace qkv::nn

// Layers: structs that hold parameters, name them, and apply operators. What a model is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/linear_attention.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"
#include "qkv/tensor.h"

namespace qkv::nn {

class Module;

// A matrix as a layer holds it: floating point, or int8 with its scales.
struct Weight : Tensor {
  Tensor scale;         // of i8: the shape of the weight, its inputs replaced by groups of them
  bool spread = false;  // of i8: along the inputs (Quantized)

  Weight() = default;
  Weight(Tensor values, Tensor scale_of_i8 = {}, bool is_spread = false)
      : Tensor(std::move(values)), scale(std::move(scale_of_i8)), spread(is_spread) {}
  // With the inputs last.
  Quantized quantized(int inputs_axis = 1) const;
  bool is_quantized() const { return defined() && dtype() == DType::i8; }
};

// Walks the parameters of a module. Names are those of the checkpoint: "encoder.layer.0.weight".
class Visitor {
 public:
  // `shape` is what the module expects; the tensor may still be undefined.
  using Visit = std::function<void(const std::string& name, Tensor& parameter, const Shape& shape)>;
  // The same for what may be int8; `inputs_axis` is the axis that products sum over.
  using VisitWeight = std::function<void(const std::string& name, Weight& weight,
                                         const Shape& shape, int inputs_axis)>;
  // Without `visit_weight` a weight is a parameter, and its scales are another: "weight_scale".
  explicit Visitor(Visit visit, VisitWeight visit_weight = {})
      : visit_(std::move(visit)), visit_weight_(std::move(visit_weight)) {}

  void operator()(const std::string& name, Tensor& parameter, const Shape& shape) const;
  void operator()(const std::string& name, Weight& weight, const Shape& shape,
                  int inputs_axis = 1) const;
  // The same visitor for what stands behind `prefix` ("model.", or nothing).
  Visitor behind(const std::string& prefix) const;
  // The parameters of `child`, behind "name."; an empty name adds nothing.
  void operator()(const std::string& name, Module& child) const;
  template <class Layer>
  void operator()(const std::string& name, std::vector<Layer>& layers) const {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      (*this)(name + "." + std::to_string(i), layers[i]);
    }
  }

 private:
  Visit visit_;
  VisitWeight visit_weight_;
  std::string prefix_;
};

// A struct that can name its parameters. Loading, saving, optimising, counting and moving are all
// made of this one function. What is const may be called by any number of threads at once; visit,
// and what changes parameters, by one thread while no other uses the module.
class Module {
 public:
  virtual ~Module() = default;
  virtual void visit(const Visitor& visitor) = 0;
};

struct Parameter {
  std::string name;
  Tensor value;
};
// In the order of visit; a tensor that two names share appears once.
std::vector<Parameter> parameters(Module& module);
std::int64_t count_parameters(Module& module);  // scales are not counted
// Makes every matrix and table int8, spread, with a scale per row or per `group` of its inputs;
// what is tied has to be tied again (Model::tie).
void quantize(Module& module, std::int64_t group = 0);
// One of them; `inputs_axis` is the axis that products sum over.
Weight quantize(const Tensor& weight, std::int64_t group, int inputs_axis);
struct InitializeOptions {
  float deviation = 0.02f;
  DType dtype = DType::f32;
  bool uniform = false;  // of the same deviation, ten times as fast to draw: for benchmarks
  // Deviations by size: sqrt(2 / (inputs + outputs)) for matrices (Glorot & Bengio 2010),
  // 1 / sqrt(width) for tables. What the Transformer of 2017 starts from.
  bool xavier = false;
};
// Draws every parameter: norms 1, biases 0, everything else normal.
void initialize(Module& module, std::uint64_t seed, const InitializeOptions& options = {});

struct LinearConfig {
  std::int64_t inputs = 0, outputs = 0;
  bool bias = true;
  bool transposed = false;  // the weight is stored [inputs, outputs], as GPT-2 does
};
// x W^T + b. Outside a tape the weight is packed for the machine on first use and the pack is kept;
// running it under a tape drops the pack, because the weight is about to change.
class Linear final : public Module {
 public:
  Linear() = default;
  explicit Linear(const LinearConfig& config);
  void visit(const Visitor& visitor) override;
  // Rounded to `dtype`, or to that of x.
  Tensor operator()(const Tensor& x, Activation activation = Activation::none,
                    std::optional<DType> dtype = {}) const;

  Weight weight;
  Tensor bias;

 private:
  struct Pack;
  LinearConfig config_;
  std::shared_ptr<Pack> pack_;
};

class Embedding final : public Module {
 public:
  Embedding() = default;
  Embedding(std::int64_t rows, std::int64_t width, std::int64_t padding = -1);
  void visit(const Visitor& visitor) override;
  // [...] -> [..., width], always f32: narrower tables are for storage.
  Tensor operator()(const Tensor& ids) const;

  Weight weight;

 private:
  std::int64_t rows_ = 0, width_ = 0, padding_ = -1;
};

struct NormConfig {
  std::int64_t width = 0;
  double eps = 1e-5;
  bool rms = false;          // x / rms(x) without a bias; else layer norm
  double weight_offset = 0;  // of an RMS norm: Gemma stores weights around 0
};
class Norm : public Module {
 public:
  Norm() = default;
  explicit Norm(const NormConfig& config) : config_(config) {}
  void visit(const Visitor& visitor) override;
  Tensor operator()(const Tensor& x) const;
  // Of x + residual; that sum goes on along the residual stream.
  NormedSum operator()(const Tensor& x, const Tensor& residual, const Dropout& dropout = {}) const;

  Tensor weight, bias;

 private:
  NormConfig config_;
};
// The two kinds by name.
struct LayerNorm final : Norm {
  LayerNorm() = default;
  LayerNorm(std::int64_t width, double eps) : Norm({.width = width, .eps = eps}) {}
};
struct RmsNorm final : Norm {
  RmsNorm() = default;
  RmsNorm(std::int64_t width, double eps, double weight_offset = 0)
      : Norm({.width = width, .eps = eps, .rms = true, .weight_offset = weight_offset}) {}
};

// Where a step of one token stands, in the memory of the device: what a recorded step reads where
// others have a number of the host.
struct StepPlace {
  Tensor position;  // i64 [1]: positions seen before the step
  Tensor lengths;   // i32 [B]: keys each query sees, its own included
};

// Keys and values of the past, per layer. Memory is reserved for `capacity` positions and taken
// from the system as it is written, so nothing that was stored moves when the cache grows. A layer
// with a window keeps the last `window` positions only. For one thread at a time.
class KvCache {
 public:
  // `dtype` is what keys and values are stored in: absent = as they come, or bf16, or i8 with a
  // scale per position and head.
  explicit KvCache(std::int64_t capacity = 0, std::optional<DType> dtype = {});

  struct View {
    Tensor keys, values;                // [B, Hk, stored, D]
    Tensor key_scale{}, value_scale{};  // of i8: f32 [B, Hk, stored]
    Tensor lengths{};                   // where the device alone knows how many are stored: i32 [B]
  };
  // Stores new keys and values [B, Hk, S, D] of a layer and returns all that it has. `window` = 0
  // keeps everything.
  View append(std::size_t layer, const Tensor& keys, const Tensor& values, std::int64_t window = 0);
  // Of a layer that keeps sums instead of keys and values: these sums, for `count` positions more.
  LinearState& sums(std::size_t layer, std::int64_t count);
  // What cross-attention computes once from the encoder's output.
  bool has_memory(std::size_t layer) const;
  void set_memory(std::size_t layer, const Tensor& keys, const Tensor& values);
  View memory(std::size_t layer) const;

  std::int64_t length() const { return length_; }  // positions seen so far
  std::int64_t capacity() const { return capacity_; }
  std::size_t bytes() const;  // reserved
  // Row i becomes what row rows[i] was: beams that survive, sequences that ended. With
  // `same_memory` the rows trade places among those of one source, whose memory is the same.
  void reorder(const std::vector<std::int64_t>& rows, bool same_memory = false);
  // Which positions hold tokens rather than padding, boolean [B, length]; undefined = all.
  Tensor visible;
  // While this is set, keys and values go where it says, nothing that was stored moves, and the
  // clock stands still until `skip` moves it: a step under it can be recorded. Error where a layer
  // keeps something else than all keys and values.
  std::optional<StepPlace> place{};
  void skip(std::int64_t count);  // so many positions were seen

 private:
  struct Rows {
    Tensor data, scale;  // [B, Hk, room, D], [B, Hk, room, 1]
  };
  struct Layer {
    Rows keys, values;
    std::int64_t stored = 0;
    Rows memory_keys, memory_values;
    LinearState sums;
  };
  // Layer 0 comes first in every step and moves the clock.
  void advance(std::size_t layer, std::int64_t count);
  void check_like(std::size_t layer, const char* name, const Tensor& held, const Tensor& x) const;
  View append_at(const StepPlace& at, std::size_t layer, const Tensor& keys, const Tensor& values);
  Layer& layer(std::size_t index);
  Rows make_room(const Tensor& like, std::int64_t room) const;

  std::int64_t capacity_ = 0, length_ = 0;
  std::optional<DType> dtype_;
  std::vector<Layer> layers_;
};

struct PagedCacheConfig {
  std::int64_t layers = 0, kv_heads = 0, head_size = 0;
  std::int64_t pages = 0;        // in the pool, of each layer
  std::int64_t page_size = 128;  // positions of a page; multiples of 32 are read where they lie
  DType dtype = DType::bf16;
  Device device{};
};
// Keys and values of many sequences in the pages of one pool. Each is of a length of its own, grows
// without anything being moved, and leaves its pages to others when it ends. For one thread at a
// time.
class PagedCache {
 public:
  explicit PagedCache(const PagedCacheConfig& config);

  std::int64_t add();                  // a sequence without positions yet: its number
  void remove(std::int64_t sequence);  // its pages are free again, and so is its number
  // Room for `count` positions more of each of these sequences, for all layers. Error where the
  // pool has not enough pages left; nothing has changed then.
  void extend(const std::vector<std::int64_t>& sequences, std::int64_t count);
  // Keys and values [B, Hk, S, D] of the last S positions of each.
  void store(std::size_t layer, const std::vector<std::int64_t>& sequences, const Tensor& keys,
             const Tensor& values);

  // As attention wants them: attention(q, view.keys, view.values, view.options()).
  struct View {
    Tensor keys, values;               // the pool of a layer, [pages, Hk, page_size, D]
    Tensor pages, lengths;             // i32 [B, N], i32 [B]
    AttentionOptions options() const;  // causal
  };
  View view(std::size_t layer, const std::vector<std::int64_t>& sequences) const;

  std::int64_t length(std::int64_t sequence) const;
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  struct Sequence {
    std::vector<std::int32_t> pages{};
    std::int64_t length = 0;
    bool exists = false;
  };
  const Sequence& at(std::int64_t sequence) const;
  std::int64_t missing_pages(const Sequence& sequence, std::int64_t count) const;

  PagedCacheConfig config_;
  std::vector<Tensor> keys_, values_;  // of each layer
  std::vector<std::int32_t> free_;
  std::vector<Sequence> sequences_;
};

// Angles of rotary positions. `theta_i` = base^(-2i/R), changed by the scaling variants.
struct RotaryConfig {
  std::int64_t head_size = 0;  // R: how many elements of a head turn
  double base = 10000;
  std::string scaling = "default";  // default, linear, dynamic, llama3, yarn
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;                        // yarn
  bool truncate = true;                                        // yarn: whole dimensions
  // yarn: what queries and keys grow by; 0 = (0.1 mscale ln(factor) + 1) over the same with
  // mscale_all_dim, or 0.1 ln(factor) + 1 where one of them is 0.
  double attention_factor = 0, mscale = 0, mscale_all_dim = 0;
  std::int64_t original_positions = 0;  // what the model was trained on
};
struct RotaryTables {
  Tensor cos, sin;  // f32 [S, R/2] or [B, S, R/2]
};
class Rotary {
 public:
  Rotary() = default;
  explicit Rotary(const RotaryConfig& config);
  // positions i64 [S] or [B, S].
  RotaryTables operator()(const Tensor& positions) const;
  // The same for positions on a device, [S], which the host does not read: all of them are below
  // `limit`.
  RotaryTables operator()(const Tensor& positions, std::int64_t limit) const;

 private:
  struct Kept;  // tables of all positions below a limit, on a device
  std::shared_ptr<Kept> kept_;
  RotaryConfig config_;
  std::vector<double> frequencies_;
  double magnitude_ = 1;
};

// sin in the first half of the columns and cos in the second (Marian), or alternating (the paper).
Tensor sinusoidal_positions(std::int64_t positions, std::int64_t width, bool alternating = false);
// The slopes of ALiBi (Press et al. 2022) for any number of heads: f32 [heads].
Tensor alibi_slopes(std::int64_t heads);

// One attention as a layer is about to compute it: norms and rotary positions are in q and k, the
// masks of the layer in the options.
struct TracedAttention {
  bool cross = false;
  Tensor queries, keys, values;  // [B, H, Sq, D], [B, Hk, Sk, D], [B, Hk, Sk, Dv]
  AttentionOptions options;
};

// What somebody who wants to look inside collects on the way.
struct Trace {
  bool attentions = false;  // also the weights of every layer: memory O(S^2)
  std::vector<Tensor> hidden_states{}, attention_weights{}, cross_weights{};
  // Called with every attention, in the order of the layers: for who wants to choose what is
  // computed, where S^2 is too much or the weights are not enough.
  std::function<void(const TracedAttention&)> on_attention{};
};

class ProjectedAttention;

// What one attention of a training pass told of its scores.
struct AttentionHealth {
  std::string name;  // "encoder.0.self", "decoder.3.cross"
  AttentionStatistics statistics{};
  // As they were multiplied, [B, H, S, D]: their gradients can be watched.
  Tensor queries{}, keys{};
  const ProjectedAttention* layer = nullptr;  // whose they are, where it is one
};

// A training pass: what layers do then, and never else. They drop out, each time with a seed of its
// own, and they tell how their scores are when asked.
struct Training {
  std::uint64_t seed = 0;                    // of this pass
  std::int64_t step = 0;                     // of the run: for what changes on a schedule
  DType dtype = DType::f32;                  // of the residual stream: f32 or bf16
  Statistics statistics = Statistics::none;  // what every attention is to tell
  std::vector<AttentionHealth> health{};     // what they told, in the order they ran
  std::uint64_t draws = 0;                   // seeds taken so far

  std::uint64_t next_seed();
};
// dropout(x, p) in a training pass; x itself where there is none.
Tensor dropout(const Tensor& x, double p, Training* training);
// What enters the residual stream: dropped out, and in the dtype of the pass.
Tensor enter_stream(const Tensor& x, double p, Training* training);

struct AttentionConfig {
  std::int64_t hidden = 0, heads = 0;
  std::int64_t kv_heads = 0;       // 0: heads
  std::int64_t head_size = 0;      // 0: hidden / heads
  std::int64_t memory_hidden = 0;  // cross-attention: width of what is attended to; 0: hidden
  bool bias = true, out_bias = true;
  bool fused = false;  // q, k, v in one weight [hidden, 3 hidden], as GPT-2 stores it
  bool causal = false;
  bool cross = false;
  std::int64_t window = 0;  // > 0: i - j < window
  std::optional<float> scale{};
  float softcap = 0;
  double dropout = 0;                   // of the weights, in training
  std::optional<double> qk_norm_eps{};  // RMS norm of each head of q and k
  // Names of the four projections in the checkpoint; with `fused`, q names the fused one.
  std::string q = "q_proj", k = "k_proj", v = "v_proj", out = "o_proj";
};

struct AttentionCall {
  Tensor memory{};  // cross-attention: [B, Sk, hidden]
  Mask mask{};      // of padding; causal and window come from the config
  Bias bias{};
  const RotaryTables* rotary = nullptr;
  KvCache* cache = nullptr;
  std::size_t layer = 0;         // of the cache
  const char* side = "decoder";  // or "encoder": for names
  Trace* trace = nullptr;
  Training* training = nullptr;
  Tensor global{};   // boolean [B, S]: positions that see and are seen by all (Longformer)
  Tensor visible{};  // f32 [B, S, 1], 0 at padding (Longformer); absent = all are tokens
};

// What stands where attention stands in a layer.
class Attention : public Module {
 public:
  // x [B, S, hidden] -> [B, S, hidden]
  virtual Tensor operator()(const Tensor& x, const AttentionCall& call) const = 0;
};

// The projections that every kind of attention has. Others than the exact one are in
// long_attention.h.
class ProjectedAttention : public Attention {
 public:
  ProjectedAttention() = default;
  explicit ProjectedAttention(const AttentionConfig& config);
  void visit(const Visitor& visitor) override;
  const AttentionConfig& config() const { return config_; }

  Linear q, k, v, out;  // q is the fused one when there is one
  RmsNorm q_norm, k_norm;

 protected:
  struct Heads {
    Tensor queries, keys, values;  // [B, heads, S, D]; keys undefined where a cache has them
  };
  // Normed, turned by the angles of the call, and in the dtype that attention multiplies in.
  Heads project(const Tensor& x, const AttentionCall& call) const;
  // [B, heads, S, D] -> [B, S, hidden]
  Tensor finish(const Tensor& attended, DType dtype) const;

 private:
  struct Joint;
  Heads project_plainly(const Tensor& x, const AttentionCall& call,
                        std::optional<DType> dtype) const;
  // q, k and v side by side in one product, when no tape looks.
  Tensor project_jointly(const Tensor& x, std::optional<DType> dtype) const;

  AttentionConfig config_;
  std::shared_ptr<Joint> joint_;
};

// Exact: self-attention, masked or not, and cross-attention.
class MultiHeadAttention final : public ProjectedAttention {
 public:
  using ProjectedAttention::ProjectedAttention;
  Tensor operator()(const Tensor& x, const AttentionCall& call) const override;
};

struct FeedForwardConfig {
  std::int64_t hidden = 0, inner = 0;
  Activation activation = Activation::gelu;
  bool gated = false;
  bool bias = true;
  bool transposed = false;
  double dropout = 0;  // of what the activation gives, in training
  std::string up = "fc1", gate{}, down = "fc2";
};
// down(activation(up(x))), or down(activation(gate(x)) * up(x)).
class FeedForward final : public Module {
 public:
  FeedForward() = default;
  explicit FeedForward(const FeedForwardConfig& config);
  void visit(const Visitor& visitor) override;
  Tensor operator()(const Tensor& x, Training* training = nullptr) const;

  Linear up, gate, down;

 private:
  FeedForwardConfig config_;
};

// Where a layer norms: what goes into each part (GPT-2, Llama, T5), what comes out of the sum
// (BERT, BART, the paper), or what goes in and what comes out of each part (Gemma 2).
enum class NormPlace : std::uint8_t { before, after, around };

struct LayerConfig {
  AttentionConfig self{};
  std::optional<AttentionConfig> cross{};
  FeedForwardConfig feed_forward{};
  NormConfig norm{};
  NormPlace place = NormPlace::before;
  double dropout = 0;  // of what each part adds to the residual stream, in training
  std::shared_ptr<Attention> attention{};  // instead of exact self-attention
  // How the checkpoint calls the parts; an empty name adds no prefix.
  std::string self_name = "self_attn", self_norm = "self_attn_layer_norm";
  std::string cross_name = "encoder_attn", cross_norm = "encoder_attn_layer_norm";
  std::string feed_forward_name{}, feed_forward_norm = "final_layer_norm";
  std::string after_self_norm{}, after_feed_forward_norm{};  // with NormPlace::around
};

// The residual stream between two layers: sum + branch, where a norm will do the addition.
struct Stream {
  Tensor sum, branch{};
};

// Self-attention, cross-attention where there is a memory, and feed-forward, each with its norm and
// its residual sum.
class Layer final : public Module {
 public:
  explicit Layer(const LayerConfig& config);
  void visit(const Visitor& visitor) override;
  // `call` is what self-attention gets; `cross` what cross-attention gets.
  Stream operator()(const Stream& x, const AttentionCall& call, const AttentionCall& cross) const;

 private:
  LayerConfig config_;
  std::shared_ptr<Attention> self_;
  MultiHeadAttention cross_;
  FeedForward feed_forward_;
  Norm self_norm_, cross_norm_, feed_forward_norm_, after_self_norm_, after_feed_forward_norm_;
};

struct StackConfig {
  std::string layers = "layers";  // their name in the checkpoint
  std::string final_norm{};       // empty: none
  NormConfig norm{};              // of the final norm
};
// Layers one after the other: an encoder, a decoder, or a decoder that looks at an encoder.
class Stack final : public Module {
 public:
  Stack() = default;
  explicit Stack(const StackConfig& config) : config_(config), final_norm_(config.norm) {}
  void add(const LayerConfig& layer) { layers_.emplace_back(layer); }
  void visit(const Visitor& visitor) override;
  // What enters each layer, and what leaves the last, goes to the trace of `call`.
  Tensor operator()(const Tensor& x, const AttentionCall& call,
                    const AttentionCall& cross = {}) const;

 private:
  StackConfig config_;
  std::vector<Layer> layers_;
  Norm final_norm_;
};

}  // namespace qkv::nn

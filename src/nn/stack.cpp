#include "core/check.h"
#include "qkv/nn.h"

namespace qkv::nn {
namespace {

// Masks and angles are made on the CPU; here they go once to where all layers want them. `tables`
// holds what the result points to.
AttentionCall on_device(const AttentionCall& call, Device device, RotaryTables& tables) {
  AttentionCall moved = call;
  for (Tensor* t : {&moved.mask.allowed_pairs, &moved.mask.global_positions, &moved.global,
                    &moved.visible, &moved.bias.values, &moved.bias.slopes}) {
    if (t->defined()) *t = to(*t, device);
  }
  if (call.rotary != nullptr) {
    tables = {to(call.rotary->cos, device), to(call.rotary->sin, device)};
    moved.rotary = &tables;
  }
  return moved;
}

}  // namespace

Layer::Layer(const LayerConfig& config)
    : config_(config),
      self_(config.attention),
      feed_forward_(config.feed_forward),
      self_norm_(config.norm),
      cross_norm_(config.norm),
      feed_forward_norm_(config.norm),
      after_self_norm_(config.norm),
      after_feed_forward_norm_(config.norm) {
  if (!self_) self_ = std::make_shared<MultiHeadAttention>(config.self);
  if (config.cross) cross_ = MultiHeadAttention(*config.cross);
}

void Layer::visit(const Visitor& visitor) {
  const LayerConfig& c = config_;
  visitor(c.self_name, *self_);
  visitor(c.self_norm, self_norm_);
  if (c.cross) {
    visitor(c.cross_name, cross_);
    visitor(c.cross_norm, cross_norm_);
  }
  visitor(c.feed_forward_name, feed_forward_);
  visitor(c.feed_forward_norm, feed_forward_norm_);
  if (c.place == NormPlace::around) {
    visitor(c.after_self_norm, after_self_norm_);
    visitor(c.after_feed_forward_norm, after_feed_forward_norm_);
  }
}

Stream Layer::operator()(const Stream& x, const AttentionCall& call,
                         const AttentionCall& cross) const {
  Training* training = call.training;
  const auto thin = [&](const Tensor& part) { return dropout(part, config_.dropout, training); };
  if (config_.place == NormPlace::after) {
    // The norm drops out on its way. Seeds are drawn after the part has drawn its own.
    const auto join = [&](const Norm& norm, const Tensor& part, const Tensor& sum) {
      const bool drops = training != nullptr && config_.dropout > 0;
      return norm(part, sum, drops ? Dropout{config_.dropout, training->next_seed()} : Dropout{})
          .normed;
    };
    Tensor y = join(self_norm_, (*self_)(x.sum, call), x.sum);
    if (config_.cross) y = join(cross_norm_, cross_(y, cross), y);
    return {join(feed_forward_norm_, feed_forward_(y, training), y)};
  }
  // The norm that follows a part adds what the part gave to the stream.
  const auto enter = [](const Norm& norm, const Stream& s) {
    return s.branch.defined() ? norm(s.branch, s.sum) : NormedSum{s.sum, norm(s.sum)};
  };
  const bool around = config_.place == NormPlace::around;
  NormedSum in = enter(self_norm_, x);
  Tensor branch = thin((*self_)(in.normed, call));
  if (around) branch = after_self_norm_(branch);
  if (config_.cross) {
    in = cross_norm_(branch, in.sum);
    branch = thin(cross_(in.normed, cross));
  }
  in = feed_forward_norm_(branch, in.sum);
  branch = thin(feed_forward_(in.normed, training));
  if (around) branch = after_feed_forward_norm_(branch);
  return {in.sum, branch};
}

void Stack::visit(const Visitor& visitor) {
  visitor(config_.layers, layers_);
  if (!config_.final_norm.empty()) visitor(config_.final_norm, final_norm_);
}

Tensor Stack::operator()(const Tensor& x, const AttentionCall& call,
                         const AttentionCall& cross) const {
  RotaryTables tables;
  AttentionCall self = on_device(call, x.device(), tables);
  AttentionCall other = on_device(cross, x.device(), tables);
  const auto total = [](const Stream& s) {
    return s.branch.defined() ? qkv::add(s.sum, s.branch) : s.sum;
  };
  Stream stream{x};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    self.layer = other.layer = i;
    if (call.trace != nullptr) call.trace->hidden_states.push_back(total(stream));
    stream = layers_[i](stream, self, other);
  }
  const bool norms = !config_.final_norm.empty();
  const Tensor last = !norms                    ? total(stream)
                      : stream.branch.defined() ? final_norm_(stream.branch, stream.sum).normed
                                                : final_norm_(stream.sum);
  if (call.trace != nullptr) call.trace->hidden_states.push_back(last);
  return last;
}

}  // namespace qkv::nn

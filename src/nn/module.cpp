#include <cmath>
#include <unordered_set>

#include "core/check.h"
#include "qkv/nn.h"
#include "qkv/random.h"

namespace qkv::nn {

void Visitor::operator()(const std::string& name, Tensor& parameter, const Shape& shape) const {
  visit_(prefix_ + name, parameter, shape);
}

void Visitor::operator()(const std::string& name, Weight& weight, const Shape& shape,
                         int inputs_axis) const {
  if (visit_weight_) return visit_weight_(prefix_ + name, weight, shape, inputs_axis);
  visit_(prefix_ + name, weight, shape);
  if (!weight.is_quantized()) {
    weight.scale = {};
    weight.spread = false;
  } else if (weight.scale.defined()) {
    visit_(prefix_ + name + (weight.spread ? "_spread_scale" : "_scale"), weight.scale,
           weight.scale.shape());
  }
}

Visitor Visitor::behind(const std::string& prefix) const {
  Visitor inner = *this;
  inner.prefix_ += prefix;
  return inner;
}

void Visitor::operator()(const std::string& name, Module& child) const {
  child.visit(name.empty() ? *this : behind(name + "."));
}

std::vector<Parameter> parameters(Module& module) {
  std::vector<Parameter> list;
  std::unordered_set<std::uint64_t> seen;
  module.visit(Visitor([&](const std::string& name, Tensor& value, const Shape&) {
    if (value.defined() && seen.insert(value.id()).second) list.push_back({name, value});
  }));
  return list;
}

std::int64_t count_parameters(Module& module) {
  std::int64_t count = 0;
  std::unordered_set<std::uint64_t> seen;
  const auto add = [&](const Tensor& value) {
    if (value.defined() && seen.insert(value.id()).second) count += value.numel();
  };
  module.visit(
      Visitor([&](const std::string&, Tensor& value, const Shape&) { add(value); },
              [&](const std::string&, Weight& weight, const Shape&, int) { add(weight); }));
  return count;
}

void quantize(Module& module, std::int64_t group) {
  module.visit(Visitor([](const std::string&, Tensor&, const Shape&) {},
                       [&](const std::string& name, Weight& weight, const Shape&, int axis) {
                         check(weight.defined(), "quantize: {} is undefined", name);
                         if (!weight.is_quantized()) weight = quantize(weight, group, axis);
                       }));
}

Weight quantize(const Tensor& weight, std::int64_t group, int inputs_axis) {
  const bool turned = inputs_axis == 0;
  const Quantized q = qkv::quantize(turned ? transpose(weight, 0, 1) : weight, group, true);
  if (!turned) return {q.values, q.scale, q.spread};
  return {contiguous(transpose(q.values, 0, 1)), contiguous(transpose(q.scale, 0, 1)), q.spread};
}

Quantized Weight::quantized(int inputs_axis) const {
  if (inputs_axis == 1) return {*this, scale, spread};
  return {transpose(*this, 0, 1), transpose(scale, 0, 1), spread};
}

namespace {

float deviation_of(const InitializeOptions& options, const std::string& name, const Shape& shape) {
  if (!options.xavier || shape.rank() != 2) return options.deviation;
  for (const char* table : {"embed", "shared", "wte", "wpe"}) {
    if (name.find(table) != std::string::npos) {
      return 1 / std::sqrt(static_cast<float>(shape[1]));
    }
  }
  return std::sqrt(2 / static_cast<float>(shape[0] + shape[1]));
}

}  // namespace

void initialize(Module& module, std::uint64_t seed, const InitializeOptions& options) {
  Generator random(seed);
  module.visit(Visitor([&](const std::string& name, Tensor& value, const Shape& shape) {
    const float deviation = deviation_of(options, name, shape);
    const float bound = deviation * std::sqrt(3.0f);
    const bool is_bias = name.ends_with("bias");
    const bool is_norm = shape.rank() == 1 && name.ends_with("weight");
    if (is_bias || is_norm) {
      value = Tensor::full(shape, is_norm ? 1 : 0, {options.dtype});
    } else if (options.uniform) {
      value = random.uniform(shape, -bound, bound, options.dtype);
    } else {
      value = random.normal(shape, 0, deviation, options.dtype);
    }
  }));
}

}  // namespace qkv::nn

// ONNX LayerNormalization, RMSNormalization, RotaryEmbedding and Gelu in terms of the operators.
#include <cmath>

#include "conformance/case.h"
#include "qkv/error.h"
#include "qkv/ops.h"

namespace conformance {
namespace {

using qkv::Tensor;

Tensor required(const Case& c, const char* slot) {
  const Tensor x = c.input(slot);
  if (!x.defined()) throw qkv::Error(c.op() + ": the case has no input '" + slot + "'");
  return x;
}

std::vector<std::int64_t> extents_of(const Tensor& x) {
  return {x.shape().extents().begin(), x.shape().extents().end()};
}

// ONNX norms over all axes from `axis` on, the library over the last one: as a matrix they agree.
struct Rows {
  Tensor x;                              // [rows, columns]
  std::vector<std::int64_t> statistics;  // extents of mean: 1 from `axis` on
};

Rows as_rows(const Case& c, const Tensor& x) {
  const std::int64_t given = c.integer("axis", -1), axis = given < 0 ? given + x.rank() : given;
  if (axis < 0 || axis >= x.rank()) throw qkv::Error(c.op() + ": axis is out of range");
  Rows result;
  std::int64_t rows = 1, columns = 1;
  for (int i = 0; i < x.rank(); ++i) {
    (i < axis ? rows : columns) *= x.size(i);
    result.statistics.push_back(i < axis ? x.size(i) : 1);
  }
  result.x = qkv::reshape(x, {rows, columns});
  return result;
}

// scale and bias broadcast to the axes that are normed.
Tensor as_vector(const Tensor& x, const Tensor& rows) {
  if (!x.defined()) return x;
  if (x.numel() != rows.size(1)) {
    throw qkv::Error("scale or bias " + to_string(x.shape()) + " does not cover the axes");
  }
  return qkv::reshape(x, {rows.size(1)});
}

double epsilon(const Case& c) { return c.number("epsilon").value_or(1e-5); }

// [positions, half] by position ids [B, S]: [B, S, half].
Tensor angles(const Case& c, const char* slot) {
  const Tensor cache = required(c, slot), positions = c.input("position_ids");
  return positions.defined() ? qkv::embedding(positions, cache) : cache;
}

}  // namespace

Outputs run_layer_norm(const Case& c) {
  // stash_type is the precision of the statistics; the library always computes them in f32.
  c.require_known({"axis", "epsilon", "stash_type"}, {"x", "scale", "bias"});
  const Tensor x = required(c, "x");
  const Rows rows = as_rows(c, x);
  const Tensor scale = as_vector(required(c, "scale"), rows.x);
  const Tensor bias = as_vector(c.input("bias"), rows.x);
  Outputs outputs;
  outputs["y"] = qkv::reshape(qkv::layer_norm(rows.x, scale, bias, epsilon(c)), extents_of(x));
  const Tensor wide = qkv::to(rows.x, qkv::DType::f32);
  const Tensor mean = qkv::mean(wide, {1}, true), centered = qkv::subtract(wide, mean);
  std::vector<float> inverse = qkv::mean(qkv::mul(centered, centered), {1}).to_vector<float>();
  for (float& value : inverse) value = static_cast<float>(1 / std::sqrt(value + epsilon(c)));
  const qkv::Shape shape{std::span<const std::int64_t>(rows.statistics)};
  outputs["mean"] = qkv::reshape(mean, rows.statistics);
  outputs["inv_std_dev"] = Tensor::from(inverse, shape);
  return outputs;
}

Outputs run_rms_norm(const Case& c) {
  c.require_known({"axis", "epsilon", "stash_type"}, {"x", "scale"});
  const Tensor x = required(c, "x");
  const Rows rows = as_rows(c, x);
  const Tensor scale = as_vector(required(c, "scale"), rows.x);
  return {{"y", qkv::reshape(qkv::rms_norm(rows.x, scale, epsilon(c)), extents_of(x))}};
}

Outputs run_rotary(const Case& c) {
  c.require_known({"interleaved", "num_heads", "rotary_embedding_dim"},
                  {"x", "cos_cache", "sin_cache", "position_ids"});
  const Tensor x = required(c, "x");
  const Tensor cos = angles(c, "cos_cache"), sin = angles(c, "sin_cache");
  const std::int64_t turned = c.integer("rotary_embedding_dim", 0);
  if (turned != 0 && turned != 2 * cos.size(-1)) {
    throw qkv::Error("RotaryEmbedding: rotary_embedding_dim does not fit the caches");
  }
  const bool interleaved = c.integer("interleaved", 0) != 0;
  if (x.rank() == 4) return {{"y", qkv::rotary(x, cos, sin, interleaved)}};
  // [B, S, H * D]
  const std::int64_t heads = c.integer("num_heads", 0);
  if (x.rank() != 3 || heads < 1 || x.size(2) % heads != 0) {
    throw qkv::Error("RotaryEmbedding: num_heads does not divide the last axis of " +
                     to_string(x.shape()));
  }
  const Tensor split =
      qkv::transpose(qkv::reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
  const Tensor y = qkv::rotary(split, cos, sin, interleaved);
  return {{"y", qkv::reshape(qkv::transpose(y, 1, 2), extents_of(x))}};
}

Outputs run_gelu(const Case& c) {
  c.require_known({"approximate"}, {"x"});
  const std::string kind = c.text("approximate", "none");
  if (kind != "none" && kind != "tanh") {
    throw qkv::Error("Gelu: unknown approximation '" + kind + "'");
  }
  const Tensor x = required(c, "x");
  return {{"y", kind == "tanh" ? qkv::gelu_tanh(x) : qkv::gelu(x)}};
}

}  // namespace conformance

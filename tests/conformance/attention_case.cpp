// ONNX Attention, opsets 23 and 24, in terms of qkv::attention_forward. Both follow the corrected
// text (onnx#7867, #7913): scale, softcap, mask, softmax, and output modes numbered in that order;
// 24 differs only by the input nonpad_kv_seqlen.
#include <cmath>
#include <limits>

#include "conformance/case.h"
#include "qkv/attention.h"
#include "qkv/error.h"
#include "qkv/ops.h"

namespace conformance {
namespace {

using qkv::DType;
using qkv::Mask;
using qkv::Tensor;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

Tensor required(const Case& c, const char* slot) {
  const Tensor x = c.input(slot);
  if (!x.defined())
    throw qkv::Error(std::string("Attention: the case has no input '") + slot + "'");
  return x;
}

// [B, S, H * D] as [B, H, S, D]; four axes stay as they are.
Tensor split_heads(const Case& c, const Tensor& x, const char* attribute) {
  if (x.rank() != 3) return x;
  const std::int64_t heads = c.integer(attribute, 0);
  if (heads < 1 || x.size(2) % heads != 0) {
    throw qkv::Error(std::string("Attention: ") + attribute + " does not divide the last axis of " +
                     to_string(x.shape()));
  }
  const std::int64_t size = x.size(2) / heads;
  return qkv::transpose(qkv::reshape(x, {x.size(0), x.size(1), heads, size}), 1, 2);
}

Tensor join_heads(const Tensor& x) {
  const Tensor rows = qkv::contiguous(qkv::transpose(x, 1, 2));
  return qkv::reshape(rows, {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

Tensor after_past(const Tensor& past, const Tensor& x) {
  return past.defined() ? qkv::concat({past, x}, 2) : qkv::contiguous(x);
}

// A mask may be shorter than the keys: what it does not mention is hidden.
Tensor pad_mask(const Tensor& mask, std::int64_t keys) {
  const std::int64_t missing = keys - mask.size(-1);
  if (missing <= 0) return mask;
  std::vector<std::int64_t> extents(mask.shape().extents().begin(), mask.shape().extents().end());
  extents.back() = missing;
  const double fill = mask.dtype() == DType::boolean ? 0 : kHidden;
  const Tensor rest = Tensor::full(qkv::Shape(extents), fill, {mask.dtype()});
  return qkv::concat({mask, rest}, -1);
}

struct Inputs {
  Tensor q, k, v;      // [B, H, S, D]; k and v with the past in front
  Tensor mask;         // as given, padded to the keys; or undefined
  Tensor key_lengths;  // i32 [B], or undefined
  Tensor offsets;      // i32 [B], or undefined: where the diagonal lies
  std::int64_t past = 0;
  bool causal = false, flat = false;  // flat: the case has three axes
};

Inputs read_inputs(const Case& c) {
  Inputs in;
  const Tensor q = required(c, "q");
  in.flat = q.rank() == 3;
  in.q = split_heads(c, q, "q_num_heads");
  const Tensor past_key = c.input("past_key"), past_value = c.input("past_value");
  if (past_key.defined()) in.past = past_key.size(2);
  in.k = after_past(past_key, split_heads(c, required(c, "k"), "kv_num_heads"));
  in.v = after_past(past_value, split_heads(c, required(c, "v"), "kv_num_heads"));
  in.causal = c.integer("is_causal", 0) != 0;
  const Tensor mask = c.input("attn_mask");
  if (mask.defined()) {
    const bool usable = is_floating(mask.dtype()) || mask.dtype() == DType::boolean;
    in.mask = pad_mask(usable ? mask : qkv::to(mask, DType::f32), in.k.size(2));
  }
  const Tensor nonpad = c.input("nonpad_kv_seqlen");
  if (nonpad.defined()) {
    in.key_lengths = qkv::to(nonpad, DType::i32);
    std::vector<std::int32_t> offsets = in.key_lengths.to_vector<std::int32_t>();
    for (std::int32_t& o : offsets) o -= static_cast<std::int32_t>(in.q.size(2));
    in.offsets = Tensor::from(offsets, nonpad.shape());
  }
  return in;
}

qkv::AttentionOptions options_for(const Case& c, const Inputs& in) {
  qkv::AttentionOptions options;
  if (const auto scale = c.number("scale")) options.scale = static_cast<float>(*scale);
  options.softcap = static_cast<float>(c.number("softcap").value_or(0));
  if (in.causal) {
    options.mask = Mask::causal() &
                   (in.offsets.defined() ? Mask::at_offset(in.offsets) : Mask::at_offset(in.past));
  }
  if (in.key_lengths.defined()) options.mask = options.mask & Mask::lengths(in.key_lengths);
  if (in.mask.defined() && in.mask.dtype() == DType::boolean) {
    options.mask = options.mask & Mask::allowed(in.mask);
  } else if (in.mask.defined()) {
    options.bias = qkv::Bias::fixed(in.mask);
  }
  return options;
}

// The scores themselves, for qk_matmul_output modes 0 (raw), 1 (after softcap) and 2 (after the
// mask). ONNX has this output for debugging; the library never holds a score matrix, so the tool
// computes it here, plainly, in double.
Tensor scores(const Case& c, const Inputs& in, std::int64_t mode) {
  const std::int64_t batch = in.q.size(0), heads = in.q.size(1), rows = in.q.size(2);
  const std::int64_t keys = in.k.size(2), size = in.q.size(3), group = heads / in.k.size(1);
  const double scale = c.number("scale").value_or(1 / std::sqrt(static_cast<double>(size)));
  const double softcap = mode >= 1 ? c.number("softcap").value_or(0) : 0;
  const std::vector<float> q = qkv::to(in.q, DType::f32).to_vector<float>();
  const std::vector<float> k = qkv::to(in.k, DType::f32).to_vector<float>();
  const qkv::Shape shape{batch, heads, rows, keys};
  std::vector<float> added(static_cast<std::size_t>(shape.numel()), 0.0f);
  if (mode == 2 && in.mask.defined()) {
    added = qkv::to(qkv::expand(in.mask, shape), DType::f32).to_vector<float>();
    if (in.mask.dtype() == DType::boolean) {
      for (float& x : added) x = x != 0 ? 0 : kHidden;
    }
  }
  const auto offsets = in.offsets.defined()
                           ? in.offsets.to_vector<std::int32_t>()
                           : std::vector<std::int32_t>(static_cast<std::size_t>(batch),
                                                       static_cast<std::int32_t>(in.past));
  std::vector<float> result(added.size());
  for (std::size_t at = 0; at < result.size(); ++at) {
    const auto index = static_cast<std::int64_t>(at);
    const std::int64_t j = index % keys, i = index / keys % rows, row = index / keys;
    const std::int64_t b = row / rows / heads, key_head = row / rows % heads / group;
    const float* q_row = q.data() + row * size;
    const float* k_row = k.data() + ((b * in.k.size(1) + key_head) * keys + j) * size;
    double score = 0;
    for (std::int64_t d = 0; d < size; ++d) score += double{q_row[d]} * k_row[d];
    score *= scale;
    if (softcap > 0) score = softcap * std::tanh(score / softcap);
    const std::int64_t offset = offsets[static_cast<std::size_t>(b)];
    const bool hidden = (in.causal && j > i + offset) ||
                        (in.key_lengths.defined() && j >= offset + rows) || added[at] == kHidden;
    result[at] = mode == 2 && hidden ? kHidden : static_cast<float>(score + added[at]);
  }
  return qkv::to(Tensor::from(result, shape), in.q.dtype());
}

}  // namespace

Outputs run_attention(const Case& c) {
  // softmax_precision asks for at least that precision; the library always computes in f32.
  c.require_known({"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale",
                   "softcap", "softmax_precision"},
                  {"q", "k", "v", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"});
  const Inputs in = read_inputs(c);
  const qkv::AttentionOptions options = options_for(c, in);
  Outputs outputs;
  const Tensor y = qkv::attention_forward(in.q, in.k, in.v, options).out;
  outputs["y"] = in.flat ? join_heads(y) : y;
  outputs["present_key"] = in.k;
  outputs["present_value"] = in.v;
  if (c.has_output("qk_matmul_output")) {
    const std::int64_t mode = c.integer("qk_matmul_output_mode", 0);
    if (mode < 0 || mode > 3) throw qkv::Error("Attention: unknown qk_matmul_output_mode");
    outputs["qk_matmul_output"] =
        mode == 3 ? qkv::to(qkv::attention_weights(in.q, in.k, options), in.q.dtype())
                  : scores(c, in, mode);
  }
  return outputs;
}

}  // namespace conformance

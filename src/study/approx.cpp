#include <cmath>

#include "core/check.h"
#include "qkv/linear_attention.h"
#include "qkv/ops.h"
#include "qkv/study_approx.h"

namespace qkv {
namespace {

// What one way to attend gives: [1, H, S, Dv] and [1, H, S, S].
struct Attended {
  Tensor out, weights;
};

Attended exactly(const nn::TracedAttention& a) {
  return {attention(a.queries, a.keys, a.values, a.options),
          attention_weights(a.queries, a.keys, a.options)};
}

Attended by_features(const nn::TracedAttention& a, std::int64_t count, std::uint64_t seed) {
  const Tensor directions = orthogonal_directions(count, a.queries.size(3), seed);
  const FeatureOptions options{.scale = a.options.scale};
  const Tensor queries = query_features(a.queries, directions, options);
  const Tensor keys = key_features(a.keys, directions, options).features;
  const bool causal = a.options.mask.causal_part;
  return {linear_attention(queries, keys, a.values, causal),
          linear_attention_weights(queries, keys, causal)};
}

Attended by_window(nn::TracedAttention a, std::int64_t window) {
  a.options.mask = a.options.mask & Mask::window(window / 2, window / 2);
  return exactly(a);
}

// Rows that average stretches of equal length: [count, S].
Tensor averages(std::int64_t count, std::int64_t length) {
  Tensor rows = Tensor::zeros({count, length});
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t begin = r * length / count, end = (r + 1) * length / count;
    std::fill(rows.data<float>() + r * length + begin, rows.data<float>() + r * length + end,
              1 / static_cast<float>(end - begin));
  }
  return rows;
}

Attended by_projection(const nn::TracedAttention& a, std::int64_t count) {
  const Tensor rows = averages(count, a.keys.size(2));
  const Tensor keys = matmul(rows, a.keys), values = matmul(rows, a.values);
  const AttentionOptions options{.scale = a.options.scale, .softcap = a.options.softcap};
  return {attention(a.queries, keys, values, options),
          matmul(attention_weights(a.queries, keys, options), rows)};
}

double entropy_of(const float* row, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (row[i] > 0) sum -= row[i] * std::log(double{row[i]});
  }
  return sum;
}

// One row of the study per head.
void compare(const Attended& got, const Attended& exact, const ApproxStudyRow& like,
             std::vector<ApproxStudyRow>& rows) {
  const std::int64_t heads = exact.out.size(1), length = exact.weights.size(2);
  const std::vector<float> out = got.out.to_vector<float>(), want = exact.out.to_vector<float>();
  const std::vector<float> p = got.weights.to_vector<float>();
  const std::vector<float> q = exact.weights.to_vector<float>();
  const std::int64_t keys = exact.weights.size(3), per_head = length * exact.out.size(3);
  for (std::int64_t h = 0; h < heads; ++h) {
    ApproxStudyRow row = like;
    row.head = h;
    double difference = 0, norm = 0;
    for (std::int64_t i = h * per_head; i < (h + 1) * per_head; ++i) {
      difference += std::pow(double{out[i]} - want[i], 2);
      norm += std::pow(double{want[i]}, 2);
    }
    row.output_error = std::sqrt(difference / norm);
    for (std::int64_t r = 0; r < length; ++r) {
      const std::int64_t at = (h * length + r) * keys;
      for (std::int64_t j = at; j < at + keys; ++j) row.weight_error += std::abs(p[j] - q[j]) / 2;
      row.entropy += entropy_of(p.data() + at, keys);
      row.exact_entropy += entropy_of(q.data() + at, keys);
    }
    for (double* mean : {&row.weight_error, &row.entropy, &row.exact_entropy}) {
      *mean /= static_cast<double>(length);
    }
    rows.push_back(row);
  }
}

// Of one self-attention. Costs per query: exact S (D + Dv), a window W (D + Dv), features
// F (2 D + 2 Dv): of q and k, then of the sums; projections K (D + Dv), once for keys and values
// and once for scores and weights.
void study(const nn::TracedAttention& a, const ApproxStudyOptions& o, ApproxStudyRow row,
           std::vector<ApproxStudyRow>& rows) {
  const Attended exact = exactly(a);
  const std::int64_t length = a.keys.size(2);
  const auto share = [&](std::int64_t count, double passes) {
    return passes * static_cast<double>(count) / static_cast<double>(length);
  };
  for (const std::int64_t features : o.features) {
    row.method = "performer";
    row.size = features;
    row.cost = share(features, 2);
    compare(by_features(a, features, o.seed + static_cast<std::uint64_t>(row.layer)), exact, row,
            rows);
  }
  for (const std::int64_t window : o.windows) {
    row.method = "longformer";
    row.size = window;
    row.cost = share(std::min(window + 1, length), 1);
    compare(by_window(a, window), exact, row, rows);
  }
  if (a.options.mask.causal_part) return;
  for (const std::int64_t count : o.lengths) {
    if (count > length) continue;
    row.method = "linformer";
    row.size = count;
    row.cost = share(count, 2);
    compare(by_projection(a, count), exact, row, rows);
  }
}

}  // namespace

ApproxStudy study_approx(const Model& model, const ModelInput& input,
                         const ApproxStudyOptions& options) {
  check(input.ids.defined() && input.ids.rank() == 2 && input.ids.size(0) == 1,
        "study_approx: ids must be [1, S], got {}", input.ids.shape());
  ApproxStudy result;
  result.options = options;
  result.model = model.info().architecture;
  result.tokens = input.ids.size(1);
  nn::Trace trace, encoder_trace;
  const auto collect = [&](nn::Trace& into, const char* side) {
    into.on_attention = [&result, side,
                         layer = std::int64_t{0}](const nn::TracedAttention& a) mutable {
      if (a.cross) return;
      check(!a.options.bias.defined(),
            "study_approx: a bias is added to these scores, which features cannot have");
      nn::TracedAttention copy = a;
      for (Tensor* t : {&copy.queries, &copy.keys, &copy.values}) {
        *t = to(to(*t, kCpu), DType::f32);
      }
      ApproxStudyRow row;
      row.side = side;
      row.layer = layer++;
      study(copy, result.options, row, result.rows);
    };
  };
  const bool is_encoder = model.info().kind == ModelKind::encoder;
  collect(trace, is_encoder ? "encoder" : "decoder");
  collect(encoder_trace, "encoder");
  model(input, {.trace = &trace, .encoder_trace = &encoder_trace});
  check(!result.rows.empty(), "study_approx: {} has no exact self-attention to look at",
        result.model);
  return result;
}

}  // namespace qkv

// Attention by random features, long inputs in segments: their features are made again for
// gradients, so that memory beyond results and gradients hardly grows.
#include <algorithm>

#include "core/backend.h"
#include "ops/layout.h"
#include "ops/linear_sums.h"
#include "ops/performer_segments.h"
#include "qkv/autograd.h"
#include "qkv/memory.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

struct PerformerCall {
  Tensor q, k, v, directions;
  FeatureOptions options;
  bool causal = false;
};

// Rows of a segment, or as many as there are.
std::int64_t segment_rows(const PerformerCall& call) {
  const auto elements = [&](const Tensor& x) {
    return Shape{x.size(0), x.size(1), call.directions.size(0)}.numel();  // or an Error
  };
  if (call.q.device() == kCpu) return segment_rows_in_cache(elements(call.q));
  const auto bytes = [&](const Tensor& x) {
    return elements(x) * static_cast<std::int64_t>(size_of(x.dtype()));
  };
  const auto total = static_cast<std::int64_t>(memory_use(call.q.device()).total);
  return segment_rows_on_gpu({call.q.size(2), bytes(call.q)}, {call.k.size(2), bytes(call.k)},
                             total);
}

// Nothing is kept but what a tape keeps: without one, features of keys are gone when those of
// queries are made.
Tensor in_one(const PerformerCall& call) {
  const auto queries = [&] { return query_features(call.q, call.directions, call.options); };
  const auto keys = [&] { return key_features(call.k, call.directions, call.options); };
  if (call.causal) return linear_attention(queries(), keys().features, call.v, true);
  LinearState state;
  add_keys(keys(), call.v, state);
  return attend_to_sums(queries(), state.sums, call.v.size(3));
}

// Positions [begin, end) of the tensors of a call.
struct Cut {
  std::int64_t begin, end;
  Tensor operator()(const Tensor& x) const {
    const TapePause pause;  // so that the part is a tensor of its own to a tape
    return slice(x, 2, begin, end);
  }
};

std::vector<Cut> cuts_of(std::int64_t length, std::int64_t rows) {
  std::vector<Cut> cuts;
  for (std::int64_t at = 0; at < length; at += rows) {
    cuts.push_back({at, std::min(length, at + rows)});
  }
  return cuts;
}

// A segment of the call. The state is that before it, and becomes that after it.
KeyFeatures keys_of(const PerformerCall& call, const Cut& cut, const Tensor& k,
                    LinearState& state) {
  FeatureOptions options = call.options;
  if (options.visible.defined()) options.visible = cut(options.visible);
  KeyFeatures keys = key_features(k, call.directions, options, state.top);
  state.top = keys.top;
  return keys;
}
Tensor queries_of(const PerformerCall& call, const Tensor& q) {
  return query_features(q, call.directions, call.options);
}

// Causal: the state before each segment. Else: that of all keys.
using States = std::vector<LinearState>;

struct Attended {
  Tensor out;
  States states;
};

Attended in_segments(const PerformerCall& call, std::int64_t rows) {
  const TapePause pause;
  Attended result;
  result.out = Tensor::empty({call.q.size(0), call.q.size(1), call.q.size(2), call.v.size(3)},
                             {call.q.dtype(), call.q.device()});
  const auto put = [&](const Tensor& part, const Cut& cut) {
    Tensor there = cut(result.out);
    backend(part.device()).copy(part, there);
  };
  LinearState state;
  for (const Cut& cut : cuts_of(call.k.size(2), rows)) {
    if (call.causal) result.states.push_back(state);
    const KeyFeatures keys = keys_of(call, cut, cut(call.k), state);
    if (call.causal) {
      put(attend_in_order(queries_of(call, cut(call.q)), keys, cut(call.v), state), cut);
    } else {
      add_keys(keys, cut(call.v), state);
    }
  }
  if (call.causal) return result;
  result.states.push_back(state);
  for (const Cut& cut : cuts_of(call.q.size(2), rows)) {
    put(attend_to_sums(queries_of(call, cut(call.q)), state.sums, call.v.size(3)), cut);
  }
  return result;
}

// Gradients of a whole call, filled by segments.
class Gathered {
 public:
  explicit Gathered(const PerformerCall& call)
      : dq_(like(call.q)), dk_(like(call.k)), dv_(like(call.v)) {}

  static void put(const Tensor& gradient, Tensor there) {
    backend(there.device()).copy(gradient, there);
  }
  void queries(const Cut& cut, const Tensor& gradient) { put(gradient, cut(dq_)); }
  void keys(const Cut& cut, const Tensor& gradient) { put(gradient, cut(dk_)); }
  void values(const Cut& cut, const Tensor& gradient) { put(gradient, cut(dv_)); }
  std::vector<Tensor> all() const { return {dq_, dk_, dv_}; }

 private:
  static Tensor like(const Tensor& x) { return empty_in_layout(x, x.shape(), x.dtype()); }
  Tensor dq_, dk_, dv_;
};

// From the end: what later segments ask of the sums travels to earlier ones.
std::vector<Tensor> causal_gradients(const PerformerCall& call, const States& states,
                                     std::int64_t rows, const Tensor& dout) {
  Gathered gathered(call);
  const std::vector<Cut> cuts = cuts_of(call.k.size(2), rows);
  Tensor dsums;
  for (std::size_t n = cuts.size(); n-- > 0;) {
    const Cut& cut = cuts[n];
    const Tensor q = cut(call.q), k = cut(call.k), v = cut(call.v), dy = cut(dout);
    LinearState state = states[n];
    const Tensor before = state.sums;
    Tape tape;
    const KeyFeatures keys = keys_of(call, cut, k, state);
    const Tensor y = attend_in_order(queries_of(call, q), keys, v, state);
    // One number that both results lead to, with these gradients.
    const Tensor both =
        Tape::record("segment", {y, state.sums}, Tensor::zeros({1}), [&](const Tensor&) {
          return std::vector{dy, dsums};
        });
    const Gradients gradients = tape.backward(both);
    gathered.queries(cut, gradients[q]);
    gathered.keys(cut, gradients[k]);
    gathered.values(cut, gradients[v]);
    if (before.defined()) dsums = gradients[before];
  }
  return gathered.all();
}

std::vector<Tensor> gradients_of(const PerformerCall& call, const States& states, std::int64_t rows,
                                 const Tensor& dout) {
  if (call.causal) return causal_gradients(call, states, rows, dout);
  Gathered gathered(call);
  const Tensor sums = states[0].sums;
  Tensor dsums = Tensor::zeros(sums.shape(), {DType::f32, sums.device()});
  for (const Cut& cut : cuts_of(call.q.size(2), rows)) {
    const Tensor q = cut(call.q);
    Tape tape;
    const Tensor y = attend_to_sums(queries_of(call, q), sums, call.v.size(3));
    const Gradients gradients = tape.backward(y, cut(dout));
    gathered.queries(cut, gradients[q]);
    backend(dsums.device()).binary(BinaryOp::add, dsums, gradients[sums], dsums);
  }
  for (const Cut& cut : cuts_of(call.k.size(2), rows)) {
    const Tensor k = cut(call.k), v = cut(call.v);
    LinearState part;
    part.top = states[0].top;
    Tape tape;
    add_keys(keys_of(call, cut, k, part), v, part);
    const Gradients gradients = tape.backward(part.sums, dsums);
    gathered.keys(cut, gradients[k]);
    gathered.values(cut, gradients[v]);
  }
  return gathered.all();
}

}  // namespace

Tensor performer_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& directions, const FeatureOptions& options, bool causal) {
  check_parts(q, k, v);
  check_causal(q, k, causal);
  // Features and their gradients leave the range of f16.
  const auto is_f16 = [](const Tensor& x) { return x.dtype() == DType::f16; };
  if (is_f16(q) || is_f16(k) || is_f16(v)) {
    const auto wide = [&](const Tensor& x) { return is_f16(x) ? to(x, DType::f32) : x; };
    return to(performer_attention(wide(q), wide(k), wide(v), directions, options, causal),
              q.dtype());
  }
  const PerformerCall call{q, k, v, directions, options, causal};
  if (k.size(2) == 0 || !directions.defined() || directions.rank() != 2) return in_one(call);
  const std::int64_t rows = segment_rows(call);
  if (std::max(q.size(2), k.size(2)) <= rows) return in_one(call);
  const Attended attended = in_segments(call, rows);
  return Tape::record("performer_attention", {q, k, v}, attended.out,
                      [call, rows, states = attended.states](const Tensor& dout) {
                        return gradients_of(call, states, rows, dout);
                      });
}

}  // namespace qkv

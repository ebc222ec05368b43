#include "cuda/attention_hopper.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "cuda/attention_backward_sm90.h"
#include "cuda/attention_decode_sm90.h"
#include "cuda/attention_forward_sm90.h"
#include "cuda/attention_statistics.h"

namespace qkv::cuda {
namespace {

Sm90Strides strides_of(const Tensor& x) { return {x.stride(0), x.stride(1), x.stride(2)}; }

Sm90Sequence sequence_of(const AttentionSequence& s) {
  const auto number = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return {.q_batch = number(s.q_batch),
          .k_batch = number(s.k_batch),
          .q_start = number(s.q_start),
          .k_start = number(s.k_start),
          .q_rows = number(s.q_rows),
          .k_rows = number(s.k_rows),
          .q_seeing = number(s.q_seeing),
          .k_visible = number(s.k_visible),
          .offset = number(s.offset)};
}

bool are_alike(const std::vector<AttentionSequence>& sequences) {
  const AttentionSequence& first = sequences.front();
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const AttentionSequence& s = sequences[b];
    const auto at = static_cast<std::int64_t>(b);
    if (s.q_batch != at || s.k_batch != at || s.q_start != 0 || s.k_start != 0 ||
        s.q_rows != first.q_rows || s.k_rows != first.k_rows || s.q_seeing != first.q_seeing ||
        s.k_visible != first.k_visible || s.offset != first.offset) {
      return false;
    }
  }
  return true;
}

template <class T>
T* pointer(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

Sm90Statistics statistics_of(const AttentionStatistics& s) {
  return {.entropy = pointer<float>(s.entropy),
          .top_weight = pointer<float>(s.top_weight),
          .top_index = pointer<std::int32_t>(s.top_index),
          .max_logit = pointer<float>(s.max_logit),
          .score_mean = pointer<float>(s.score_mean),
          .score_var = pointer<float>(s.score_var),
          .entropy_mean = pointer<float>(s.entropy_mean),
          .entropy_relative = pointer<float>(s.entropy_relative),
          .saturation = pointer<float>(s.saturation),
          .received = pointer<float>(s.received)};
}

// The one thing that is said of pairs, if there is only one.
Sm90Pairs pairs_of(const AttentionProblem& p) {
  Sm90Pairs pairs;
  const auto take = [&](Said said, const Tensor& x) {
    pairs.said = said;
    pairs.data = x.raw();
    pairs.strides = strides_of(x);
    pairs.batches = pairs.strides.batch == 0 ? 1 : x.size(0);
    pairs.heads = pairs.strides.head == 0 ? 1 : x.size(1);
  };
  if (p.bias.defined()) take(Said::bias, p.bias);
  if (p.allowed.defined()) take(Said::mask, p.allowed);
  if (p.has_diagonal_bias()) pairs.said = Said::distance;
  if (p.slopes.defined()) {
    pairs.slopes = p.slopes.data<float>();
    pairs.slopes_batch = p.slopes.stride(0);
    pairs.slopes_head = p.slopes.stride(1);
  }
  if (p.dropout > 0) {
    pairs.said = Said::dropout;
    pairs.dropout = PairDropout(p.dropout, p.seed);
  }
  return pairs;
}

// Why what is said of pairs is more than these kernels can do, whatever its tiles.
std::string why_not_pairs(const AttentionProblem& p) {
  const Tensor& tiles = p.bias.defined() ? p.bias : p.allowed;
  const int said = (p.bias.defined() ? 1 : 0) + (p.allowed.defined() ? 1 : 0) +
                   (p.has_diagonal_bias() ? 1 : 0) + (p.dropout > 0 ? 1 : 0);
  if (said > 1) return "more than one of bias, mask of pairs and dropout";
  if (!tiles.defined()) return "";
  if (p.bias.defined() && p.bias.dtype() != p.q.dtype()) return "the bias has another dtype";
  if (tiles.stride(3) != 1) return "elements of a row are not neighbours";
  for (const AttentionSequence& s : p.sequences) {
    if (s.q_start != 0 || s.k_start != 0) return "a bias or mask of packed sequences";
  }
  return "";
}

// Without `sequences`, `ticket` and the workspace of statistics, which are on the device.
Sm90Forward call_of(const AttentionProblem& p, const AttentionResults& results) {
  Sm90Forward call;
  call.dtype = p.q.dtype();
  call.q = p.q.raw();
  call.k = p.k.raw();
  call.v = p.v.raw();
  call.q_strides = strides_of(p.q);
  call.k_strides = strides_of(p.k);
  call.v_strides = strides_of(p.v);
  call.out_strides = call.q_strides;  // of a result that is not there yet
  if (watches_scores(results.statistics) || results.statistics.received.defined()) {
    call.statistics.emplace();
  }
  if (results.out.defined()) {
    call.out = results.out.raw();
    call.lse = results.lse.data<float>();
    call.out_strides = strides_of(results.out);
    if (call.statistics) call.statistics = statistics_of(results.statistics);
  }
  call.q_batches = p.q.size(0);
  call.k_batches = p.k.size(0);
  call.heads = p.heads;
  call.key_heads = p.key_heads;
  call.q_rows = p.q.size(2);
  call.k_rows = p.k.size(2);
  if (p.pages.defined()) {
    call.page_rows = p.k.size(2);
    call.pages_each = p.pages.size(1);
    call.k_rows = call.page_rows * call.pages_each;
  }
  call.sinks = pointer<float>(p.sinks);
  call.head_size = p.head_size;
  call.value_size = p.value_size;
  call.scale = p.scale;
  call.softcap = p.softcap;
  call.pairs = pairs_of(p);
  call.left = p.left;
  call.right = !p.causal ? p.right : p.right < 0 ? 0 : std::min<std::int64_t>(p.right, 0);
  call.sequence_count = static_cast<std::int64_t>(p.sequences.size());
  for (const AttentionSequence& s : p.sequences) {
    call.longest = std::max(call.longest, s.q_rows);
    call.longest_keys = std::max(call.longest_keys, s.k_rows);
  }
  call.key_lengths = pointer<std::int32_t>(p.key_lengths);
  if (!p.sequences.empty()) call.all_alike = sequence_of(p.sequences.front());
  return call;
}

Sm90Backward call_of(const AttentionProblem& p, const AttentionBackward& t) {
  Sm90Backward call;
  AttentionResults forward;
  forward.out = t.out;
  forward.lse = t.lse;
  call.forward = call_of(p, forward);
  call.deterministic = p.deterministic;
  if (t.dout.defined()) {
    call.dout = t.dout.raw();
    call.dlse = t.dlse.defined() ? t.dlse.data<float>() : nullptr;
    call.dq = t.dq.raw();
    call.dk = t.dk.raw();
    call.dv = t.dv.raw();
    call.dout_strides = strides_of(t.dout);
    call.dq_strides = strides_of(t.dq);
    call.dk_strides = strides_of(t.dk);
    call.dv_strides = strides_of(t.dv);
  } else {  // results that are not there yet
    call.dout_strides = call.dq_strides = call.forward.q_strides;
    call.dk_strides = call.forward.k_strides;
    call.dv_strides = call.forward.v_strides;
  }
  return call;
}

// The sequences on the device, unless they are all alike.
Tensor upload_sequences(CudaBackend& backend, const AttentionProblem& p, Sm90Forward& call) {
  if (are_alike(p.sequences)) return {};
  std::vector<Sm90Sequence> all;
  for (const AttentionSequence& s : p.sequences) all.push_back(sequence_of(s));
  Tensor there = backend.upload(std::as_bytes(std::span(all)));
  call.sequences = static_cast<const Sm90Sequence*>(there.raw());
  return there;
}

// What neither pass can do, whatever the strides of its results.
std::string why_not_either(const AttentionProblem& p) {
  if (p.has_global()) return "there are global positions";
  if (p.sequences.empty() || p.q.numel() == 0 || p.k.numel() == 0) return "there is nothing to do";
  for (const Tensor* x : {&p.q, &p.k, &p.v}) {
    if (x->stride(3) != 1) return "elements of a row are not neighbours";
  }
  constexpr std::int64_t kFar = std::int64_t{1} << 29;  // sums of two stay within an int
  for (const AttentionSequence& sequence : p.sequences) {
    if (std::abs(sequence.offset) >= kFar) return "the diagonal is too far away";
  }
  if (std::max(p.left, p.right) >= kFar) return "the window is too wide";
  return "";
}

bool has_neighbours(const Tensor& x) { return !x.defined() || x.stride(3) == 1; }

}  // namespace

std::string why_not_hopper(const AttentionProblem& p, const AttentionResults& results) {
  if (std::string reason = why_not_either(p); !reason.empty()) return reason;
  if (std::string reason = why_not_pairs(p); !reason.empty()) return reason;
  if (!has_neighbours(results.out)) return "elements of a row are not neighbours";
  const char* reason = why_not_sm90_forward(call_of(p, results));
  return reason != nullptr ? reason : "";
}

std::string why_not_hopper(const AttentionProblem& p, const AttentionBackward& t) {
  if (t.dentropy.defined()) return "there is a gradient of the entropy";
  if (std::string reason = why_not_either(p); !reason.empty()) return reason;
  if (std::string reason = why_not_pairs(p); !reason.empty()) return reason;
  for (const Tensor* x : {&t.dout, &t.out, &t.dq, &t.dk, &t.dv}) {
    if (!has_neighbours(*x)) return "elements of a row are not neighbours";
  }
  const char* reason = why_not_sm90_backward(call_of(p, t));
  return reason != nullptr ? reason : "";
}

std::string hopper_kernel(const AttentionProblem& p, const AttentionResults& results) {
  return decode_is_better(call_of(p, results)) ? "decode" : "sm90";
}

bool decodes(const AttentionProblem& p, const AttentionResults& results) {
  const Sm90Forward call = call_of(p, results);
  return why_not_hopper(p, results).empty() && decode_is_better(call) &&
         call.page_rows % kDecodeTile == 0;
}

void hopper_forward(CudaBackend& backend, const AttentionProblem& p,
                    const AttentionResults& results, const HopperExtras& extras) {
  Sm90Forward call = call_of(p, results);
  call.pairs.diagonal = extras.diagonal;
  call.pairs.reach = extras.reach;
  const Tensor sequences = upload_sequences(backend, p, call);
  call.ticket = backend.tickets(kSm90Tickets);
  Tensor sums, pages;
  if (p.pages.defined()) {
    const auto* table = p.pages.data<std::int32_t>();
    pages =
        backend.upload(std::as_bytes(std::span(table, static_cast<std::size_t>(p.pages.numel()))));
    call.pages = static_cast<const std::int32_t*>(pages.raw());
  }
  if (call.statistics) {
    sums = backend.scratch<std::byte>(sm90_statistics_workspace(call));
    call.statistics->workspace = sums.raw();
  }
  if (!decode_is_better(call)) return attention_forward_sm90(call, backend.stream());
  const DecodePlan plan = plan_decode(call);
  const Tensor workspace = backend.scratch<std::byte>(plan.workspace_bytes);
  attention_decode(call, plan, workspace.raw(), backend.stream());
}

HopperBackward hopper_backward(CudaBackend& backend, const AttentionProblem& p,
                               const AttentionBackward& t, const HopperExtras& extras) {
  Sm90Backward call = call_of(p, t);
  call.row_top = extras.top;
  call.row_share = extras.share;
  call.forward.pairs.diagonal = extras.diagonal;
  call.forward.pairs.reach = extras.reach;
  const Tensor sequences = upload_sequences(backend, p, call.forward);
  call.forward.ticket = backend.tickets(kSm90Tickets);
  HopperBackward result;
  result.workspace = backend.scratch<std::byte>(sm90_backward_workspace(call));
  call.workspace = result.workspace.raw();
  if (t.dslopes.defined() || t.dtable.defined()) {
    result.far.parts = sm90_far_parts(call);
    result.sums = backend.scratch<float>(2 * call.forward.sequence_count * call.forward.heads *
                                         result.far.parts);
    backend.fill(result.sums, 0);  // blocks that nobody sees leave nothing
    result.far.data = call.far_sums = static_cast<float*>(result.sums.raw());
  }
  result.served = attention_backward_sm90(call, backend.stream());
  result.far.worthless = result.served;
  return result;
}

}  // namespace qkv::cuda

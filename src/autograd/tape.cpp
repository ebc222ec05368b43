#include <unordered_set>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/autograd.h"

namespace qkv {
namespace {

thread_local Tape* innermost = nullptr;

// What a gradient is given for. By id: a node keeps alive what its gradient function needs, and
// neither its inputs nor its results.
struct Input {
  std::uint64_t id;  // 0: undefined
  Shape shape;
};

struct Node {
  const char* name;
  std::vector<Input> inputs;
  std::vector<std::uint64_t> outputs;
  Tape::GradientFunction gradient;
};

// Sums of what reaches each tensor. The first gradient is taken as it comes and may be shared with
// another tensor (both terms of a sum get the same); a second one makes a sum of our own.
class Accumulator {
 public:
  void add(std::uint64_t id, const Tensor& gradient) {
    auto [entry, is_first] = sums_.try_emplace(id, Sum{gradient, false});
    if (is_first) return;
    Sum& sum = entry->second;
    check(sum.value.shape() == gradient.shape(),
          "backward: gradients of shapes {} and {} reach one tensor", sum.value.shape(),
          gradient.shape());
    Tensor total = sum.is_own
                       ? sum.value
                       : Tensor::empty(gradient.shape(), {sum.value.dtype(), sum.value.device()});
    backend(total.device()).binary(BinaryOp::add, sum.value, gradient, total);
    sum = {total, true};
  }
  Tensor take(std::uint64_t id) {
    const auto found = sums_.find(id);
    if (found == sums_.end()) return {};
    Tensor value = std::move(found->second.value);
    sums_.erase(found);
    return value;
  }

 private:
  struct Sum {
    Tensor value;
    bool is_own;
  };
  std::unordered_map<std::uint64_t, Sum> sums_;
};

}  // namespace

struct Tape::Recording {
  std::vector<Node> nodes;
  std::unordered_set<std::uint64_t> produced, watched;
  bool walked = false;
};

Tensor Gradients::operator[](const Tensor& x) const {
  const auto found = by_id_.find(x.id());
  return found == by_id_.end() ? Tensor() : found->second;
}

void Gradients::accumulate(const Gradients& other) {
  for (const auto& [id, gradient] : other.by_id_) {
    const auto [entry, is_first] = by_id_.try_emplace(id, gradient);
    if (is_first) continue;
    Tensor& sum = entry->second;
    check(sum.shape() == gradient.shape(), "accumulate: gradients of one tensor are {} and {}",
          sum.shape(), gradient.shape());
    const Tensor before = sum;
    if (own_.insert(id).second) sum = Tensor::empty(sum.shape(), {DType::f32, sum.device()});
    if (before.dtype() == DType::f32) {
      backend(sum.device()).binary(BinaryOp::add, before, gradient, sum);
    } else {  // widen before the sum, not after it
      backend(sum.device()).copy(before, sum);
      backend(sum.device()).binary(BinaryOp::add, sum, gradient, sum);
    }
  }
}

Tape::Tape() : recording_(std::make_unique<Recording>()), outer_(innermost) { innermost = this; }

Tape::~Tape() {
  if (innermost == this) innermost = outer_;
}

TapePause::TapePause() : paused_(innermost) { innermost = nullptr; }

TapePause::~TapePause() { innermost = paused_; }

bool Tape::recording() { return innermost != nullptr; }

std::size_t Tape::size() const { return recording_->nodes.size(); }

void Tape::watch(const Tensor& x) { recording_->watched.insert(x.id()); }

void Tape::record_all(const char* name, const std::vector<Tensor>& inputs,
                      const std::vector<Tensor>& outputs, GradientFunction gradient) {
  if (innermost == nullptr) return;
  Recording& recording = *innermost->recording_;
  check(!recording.walked, "{}: this tape has been walked; make a new one for the next step", name);
  Node node{name, {}, {}, std::move(gradient)};
  for (const Tensor& x : inputs) node.inputs.push_back({x.id(), x.shape()});
  for (const Tensor& y : outputs) {
    node.outputs.push_back(y.id());
    if (y.defined()) recording.produced.insert(y.id());
  }
  recording.nodes.push_back(std::move(node));
}

Gradients Tape::backward(const Tensor& loss) {
  check(loss.defined() && loss.numel() == 1,
        "backward: a loss has one element, got {}; sum it, or pass dy", loss.shape());
  return backward(loss, Tensor::full(loss.shape(), 1.0, {loss.dtype(), loss.device()}));
}

Gradients Tape::backward(const Tensor& y, const Tensor& dy) {
  Recording& recording = *recording_;
  check(!recording.walked, "backward: this tape has been walked; gradients are freed on the way");
  check(y.defined() && dy.defined() && y.shape() == dy.shape(),
        "backward: dy {} must have the shape of y {}", dy.shape(), y.shape());
  check(recording.produced.contains(y.id()),
        "backward: no operator recorded on this tape made this tensor");
  recording.walked = true;

  const TapePause pause;
  Accumulator sums;
  sums.add(y.id(), dy);
  Gradients result;
  std::unordered_set<std::uint64_t> leaves;  // tensors no operator made
  while (!recording.nodes.empty()) {
    const Node node = std::move(recording.nodes.back());
    recording.nodes.pop_back();
    std::vector<Tensor> douts;
    bool reached = false;
    for (const std::uint64_t id : node.outputs) {
      douts.push_back(sums.take(id));
      reached |= douts.back().defined();
      if (douts.back().defined() && recording.watched.contains(id)) {
        result.by_id_[id] = douts.back();
      }
    }
    if (!reached) continue;
    const std::vector<Tensor> dins = node.gradient(douts);
    check(dins.size() <= node.inputs.size(), "{}: more gradients than inputs", node.name);
    for (std::size_t i = 0; i < dins.size(); ++i) {
      const Input& x = node.inputs[i];
      if (!dins[i].defined() || x.id == 0) continue;
      check(dins[i].shape() == x.shape, "{}: the gradient of input {} is {}, the input is {}",
            node.name, i, dins[i].shape(), x.shape);
      sums.add(x.id, dins[i]);
      if (!recording.produced.contains(x.id)) leaves.insert(x.id);
    }
  }
  for (const std::uint64_t id : leaves) result.by_id_[id] = sums.take(id);
  return result;
}

}  // namespace qkv

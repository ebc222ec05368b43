// Tape: the list of operators run while it lives. Walking it backwards gives gradients.
//
//   qkv::Tape tape;
//   qkv::Tensor loss = qkv::cross_entropy(model(ids), targets);
//   qkv::Gradients grads = tape.backward(loss);      // grads[parameter]
//
// There is no requires_grad and no zero_grad: without a living tape nothing is recorded, and every
// backward returns gradients of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "qkv/tensor.h"

namespace qkv {

// What a backward found, by tensor. A tensor and its copies are one value; a view is another.
class Gradients {
 public:
  bool contains(const Tensor& x) const { return by_id_.contains(x.id()); }
  // d loss / d x; an undefined Tensor when the loss does not depend on x.
  Tensor operator[](const Tensor& x) const;
  std::size_t size() const { return by_id_.size(); }
  void set(const Tensor& x, Tensor gradient) {
    own_.erase(x.id());
    by_id_[x.id()] = std::move(gradient);
  }
  // Adds those of another backward: a batch in several passes. Sums are f32. They are kept in
  // place: what operator[] gave before a second accumulate changes with it.
  void accumulate(const Gradients& other);

 private:
  friend class Tape;
  std::unordered_map<std::uint64_t, Tensor> by_id_;
  std::unordered_set<std::uint64_t> own_;  // sums that nobody else's memory is part of
};

// A tape is its thread's: no other may use or destroy it. Tapes of several threads may read the
// same parameters at the same time.
class Tape {
 public:
  // Records what this thread runs from now on. Tapes nest; the innermost records.
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Keeps the gradient of a tensor that an operator made. Those of tensors that no recorded
  // operator made (parameters, inputs) are always kept; the others are freed on the way.
  void watch(const Tensor& x);

  // Gradients of a loss of one element, or of sum(y * dy). Memory is freed as the walk goes on, so
  // a tape is walked once.
  Gradients backward(const Tensor& loss);
  Gradients backward(const Tensor& y, const Tensor& dy);

  std::size_t size() const;  // recorded operators

  // For operators. `gradient` gets d loss / d output for each output (undefined where nothing
  // depends on it) and returns d loss / d input for each input (undefined where there is none).
  // What it needs it holds itself: the tape keeps neither inputs nor outputs alive.
  using GradientFunction = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
  static bool recording();
  static void record_all(const char* name, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& outputs, GradientFunction gradient);
  // The same with one output, which it returns; F is std::vector<Tensor>(const Tensor& dy).
  template <class F>
  static Tensor record(const char* name, std::initializer_list<Tensor> inputs, const Tensor& y,
                       F&& gradient) {
    if (recording()) {
      record_all(name, inputs, {y},
                 [g = std::forward<F>(gradient)](std::span<const Tensor> dy) { return g(dy[0]); });
    }
    return y;
  }

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
  Tape* outer_;
};

// While it lives nothing is recorded, whatever tapes there are.
class TapePause {
 public:
  TapePause();
  ~TapePause();
  TapePause(const TapePause&) = delete;
  TapePause& operator=(const TapePause&) = delete;

 private:
  Tape* paused_;
};

}  // namespace qkv

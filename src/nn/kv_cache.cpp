#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/nn.h"

namespace qkv::nn {
namespace {

// Beyond the window, this many positions are taken before the window is moved to the front: one
// short copy in that many steps.
constexpr std::int64_t kSlack = 256;

void copy_into(const Tensor& from, const Tensor& room, std::int64_t at) {
  Tensor target = slice(room, 2, at, at + from.size(2));
  backend(from.device()).copy(from, target);
}

}  // namespace

KvCache::Layer& KvCache::layer(std::size_t index) {
  if (layers_.size() <= index) layers_.resize(index + 1);
  return layers_[index];
}

KvCache::View KvCache::append(std::size_t index, const Tensor& keys, const Tensor& values,
                              std::int64_t window) {
  Layer& l = layer(index);
  const std::int64_t count = keys.size(2);
  // Layer 0 comes first in every step and moves the clock.
  if (index == 0) {
    check(length_ + count <= capacity_, "cache: {} positions and {} more exceed its capacity of {}",
          length_, count, capacity_);
    length_ += count;
  }
  if (!l.keys.defined()) {
    const std::int64_t room =
        window > 0 ? std::min(capacity_, std::max(window, count) + kSlack) : capacity_;
    const TensorOptions options{keys.dtype(), keys.device()};
    l.keys = Tensor::empty({keys.size(0), keys.size(1), room, keys.size(3)}, options);
    l.values = Tensor::empty({values.size(0), values.size(1), room, values.size(3)}, options);
  }
  check(l.keys.size(0) == keys.size(0) && l.keys.size(1) == keys.size(1) &&
            l.keys.size(3) == keys.size(3) && l.keys.dtype() == keys.dtype(),
        "cache: layer {} holds {} {}, got keys {} {}: the cache is of another model or batch",
        index, l.keys.dtype(), l.keys.shape(), keys.dtype(), keys.shape());
  if (l.stored + count > l.keys.size(2)) {
    // Only a layer with a window gets here: what left the window is forgotten.
    const std::int64_t kept = std::min(l.stored, window - 1);
    const Tensor old_keys = slice(l.keys, 2, l.stored - kept, l.stored);
    const Tensor old_values = slice(l.values, 2, l.stored - kept, l.stored);
    const std::int64_t room = std::max(l.keys.size(2), kept + count + kSlack);
    Layer moved;
    const TensorOptions options{keys.dtype(), keys.device()};
    moved.keys = Tensor::empty({keys.size(0), keys.size(1), room, keys.size(3)}, options);
    moved.values = Tensor::empty({values.size(0), values.size(1), room, values.size(3)}, options);
    copy_into(old_keys, moved.keys, 0);
    copy_into(old_values, moved.values, 0);
    moved.stored = kept;
    l = moved;
  }
  copy_into(keys, l.keys, l.stored);
  copy_into(values, l.values, l.stored);
  l.stored += count;
  return {slice(l.keys, 2, 0, l.stored), slice(l.values, 2, 0, l.stored)};
}

bool KvCache::has_memory(std::size_t index) const {
  return index < layers_.size() && layers_[index].memory_keys.defined();
}

void KvCache::set_memory(std::size_t index, const Tensor& keys, const Tensor& values) {
  layer(index).memory_keys = contiguous(keys);
  layer(index).memory_values = contiguous(values);
}

KvCache::View KvCache::memory(std::size_t index) const {
  return {layers_[index].memory_keys, layers_[index].memory_values};
}

std::size_t KvCache::bytes() const {
  std::size_t total = 0;
  for (const Layer& l : layers_) {
    for (const Tensor* t : {&l.keys, &l.values, &l.memory_keys, &l.memory_values}) {
      if (t->defined()) total += static_cast<std::size_t>(t->numel()) * size_of(t->dtype());
    }
  }
  return total;
}

void KvCache::reorder(const std::vector<std::int64_t>& rows) {
  bool is_same = true;
  for (std::size_t i = 0; i < rows.size(); ++i) is_same &= rows[i] == static_cast<std::int64_t>(i);
  if (layers_.empty()) return;
  const auto pick = [&](const Tensor& t, std::int64_t stored) {
    if (!t.defined() || (is_same && t.size(0) == static_cast<std::int64_t>(rows.size()))) return t;
    std::vector<std::int64_t> extents(t.shape().extents().begin(), t.shape().extents().end());
    extents[0] = static_cast<std::int64_t>(rows.size());
    Tensor result = Tensor::empty(Shape(extents), {t.dtype(), t.device()});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      Tensor from = slice(t, 0, rows[i], rows[i] + 1), into = slice(result, 0, at, at + 1);
      if (stored >= 0) {
        from = slice(from, 2, 0, stored);
        into = slice(into, 2, 0, stored);
      }
      backend(t.device()).copy(from, into);
    }
    return result;
  };
  for (Layer& l : layers_) {
    l.keys = pick(l.keys, l.stored);
    l.values = pick(l.values, l.stored);
    l.memory_keys = pick(l.memory_keys, -1);
    l.memory_values = pick(l.memory_values, -1);
  }
  visible = pick(visible, -1);
}

}  // namespace qkv::nn

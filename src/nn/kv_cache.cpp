#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/nn.h"

namespace qkv::nn {
namespace {

// Beyond the window, this many positions are taken before the window is moved to the front: one
// short copy in that many steps.
constexpr std::int64_t kSlack = 256;

// x [B, Hk, S, D] into rows [at, at + S), in the dtype of the cache.
void store(const Tensor& x, const Tensor& data, const Tensor& scale, std::int64_t at) {
  Tensor rows = slice(data, 2, at, at + x.size(2));
  if (!scale.defined()) return backend(x.device()).copy(x, rows);
  Tensor scales = slice(scale, 2, at, at + x.size(2));
  backend(x.device()).quantize(x, {.group = x.size(3)}, rows, scales);
}

// Rows [begin, end) to the front of `to`, as they are.
void move_rows(const Tensor& from, const Tensor& to, std::int64_t begin, std::int64_t end) {
  if (!from.defined()) return;
  Tensor front = slice(to, 2, 0, end - begin);
  backend(from.device()).copy(slice(from, 2, begin, end), front);
}

Tensor scales_of(const Tensor& scale, std::int64_t stored) {
  if (!scale.defined()) return {};
  return reshape(slice(scale, 2, 0, stored), {scale.size(0), scale.size(1), stored});
}

}  // namespace

KvCache::KvCache(std::int64_t capacity, std::optional<DType> dtype)
    : capacity_(capacity), dtype_(dtype) {
  check(!dtype || is_floating(*dtype) || *dtype == DType::i8,
        "cache: keys and values can be f32, bf16, f16 or i8, not {}", dtype.value_or(DType::f32));
  check(capacity >= 0, "cache: a capacity must not be negative, got {}", capacity);
}

KvCache::Rows KvCache::make_room(const Tensor& like, std::int64_t room) const {
  const DType dtype = dtype_.value_or(like.dtype());
  const std::int64_t batch = like.size(0), heads = like.size(1);
  Rows rows{Tensor::empty({batch, heads, room, like.size(3)}, {dtype, like.device()}), {}};
  if (dtype == DType::i8) {
    rows.scale = Tensor::empty({batch, heads, room, 1}, {DType::f32, like.device()});
  }
  return rows;
}

KvCache::Layer& KvCache::layer(std::size_t index) {
  constexpr std::size_t kMostLayers = std::size_t{1} << 20;
  check(index < kMostLayers, "cache: layer {} is out of range", index);
  if (layers_.size() <= index) layers_.resize(index + 1);
  return layers_[index];
}

void KvCache::advance(std::size_t index, std::int64_t count) {
  if (index != 0) return;
  check(count >= 0 && count <= capacity_ - length_,
        "cache: {} positions and {} more exceed its capacity of {}", length_, count, capacity_);
  length_ += count;
}

void KvCache::skip(std::int64_t count) {
  advance(0, count);
  for (Layer& l : layers_) l.stored += l.keys.data.defined() ? count : 0;
}

LinearState& KvCache::sums(std::size_t index, std::int64_t count) {
  check<NotRecordable>(!place, "cache: layer {} keeps sums, which a step at a place cannot add to",
                       index);
  advance(index, count);
  return layer(index).sums;
}

void KvCache::check_like(std::size_t index, const char* name, const Tensor& held,
                         const Tensor& x) const {
  check(held.size(0) == x.size(0) && held.size(1) == x.size(1) && held.size(3) == x.size(3) &&
            held.dtype() == dtype_.value_or(x.dtype()) && held.device() == x.device(),
        "cache: layer {} holds {} {}, got {} {} {}: the cache is of another model or batch", index,
        held.dtype(), held.shape(), name, x.dtype(), x.shape());
}

KvCache::View KvCache::append_at(const StepPlace& at, std::size_t index, const Tensor& keys,
                                 const Tensor& values) {
  Layer& l = layer(index);
  check<NotRecordable>(
      l.keys.data.defined() && l.keys.data.size(2) == capacity_ && !l.keys.scale.defined(),
      "cache: layer {} does not keep all keys and values as they are", index);
  check_like(index, "keys", l.keys.data, keys);
  check_like(index, "values", l.values.data, values);
  backend(keys.device()).store_rows(to(keys, l.keys.data.dtype()), at.position, l.keys.data);
  backend(keys.device()).store_rows(to(values, l.values.data.dtype()), at.position, l.values.data);
  return {.keys = l.keys.data, .values = l.values.data, .lengths = at.lengths};
}

KvCache::View KvCache::append(std::size_t index, const Tensor& keys, const Tensor& values,
                              std::int64_t window) {
  check(window >= 0, "cache: a window must not be negative, got {}", window);
  check(keys.rank() == 4 && values.rank() == 4 && keys.size(0) == values.size(0) &&
            keys.size(1) == values.size(1) && keys.size(2) == values.size(2),
        "cache: keys {} and values {} must be [B, Hk, S, D] and differ in D alone", keys.shape(),
        values.shape());
  if (place) return append_at(*place, index, keys, values);
  Layer& l = layer(index);
  const std::int64_t count = keys.size(2);
  advance(index, count);
  if (!l.keys.data.defined()) {
    const bool is_narrow = window > 0 && std::max(window, count) < capacity_ - kSlack;
    const std::int64_t room = is_narrow ? std::max(window, count) + kSlack : capacity_;
    l.keys = make_room(keys, room);
    l.values = make_room(values, room);
  }
  const Tensor& held = l.keys.data;
  check_like(index, "keys", held, keys);
  check_like(index, "values", l.values.data, values);
  check(window > 0 || count <= held.size(2) - l.stored,
        "cache: layer {} holds {} positions of {}, and {} more do not fit; layer 0 comes first",
        index, l.stored, held.size(2), count);
  if (l.stored + count > held.size(2)) {
    // Only a layer with a window gets here: what left the window is forgotten.
    const std::int64_t kept = std::min(l.stored, window - 1), begin = l.stored - kept;
    const std::int64_t room = std::max(held.size(2), kept + count + kSlack);
    const auto forget = [&](Rows& rows, const Tensor& like) {
      const Rows moved = make_room(like, room);
      move_rows(rows.data, moved.data, begin, l.stored);
      move_rows(rows.scale, moved.scale, begin, l.stored);
      rows = moved;
    };
    forget(l.keys, keys);
    forget(l.values, values);
    l.stored = kept;
  }
  store(keys, l.keys.data, l.keys.scale, l.stored);
  store(values, l.values.data, l.values.scale, l.stored);
  l.stored += count;
  return {slice(l.keys.data, 2, 0, l.stored), slice(l.values.data, 2, 0, l.stored),
          scales_of(l.keys.scale, l.stored), scales_of(l.values.scale, l.stored)};
}

bool KvCache::has_memory(std::size_t index) const {
  return index < layers_.size() && layers_[index].memory_keys.data.defined();
}

void KvCache::set_memory(std::size_t index, const Tensor& keys, const Tensor& values) {
  const auto hold = [&](const Tensor& x) {
    const Rows rows = make_room(x, x.size(2));
    store(x, rows.data, rows.scale, 0);
    return rows;
  };
  layer(index).memory_keys = hold(keys);
  layer(index).memory_values = hold(values);
}

KvCache::View KvCache::memory(std::size_t index) const {
  check(has_memory(index), "cache: layer {} has no memory; set_memory comes first", index);
  const auto& [keys, keys_scale] = layers_[index].memory_keys;
  const auto& [values, values_scale] = layers_[index].memory_values;
  return {keys, values, scales_of(keys_scale, keys.size(2)),
          scales_of(values_scale, values.size(2))};
}

std::size_t KvCache::bytes() const {
  std::size_t total = 0;
  for (const Layer& l : layers_) {
    for (const Rows* rows : {&l.keys, &l.values, &l.memory_keys, &l.memory_values}) {
      for (const Tensor* t : {&rows->data, &rows->scale}) {
        if (t->defined()) total += static_cast<std::size_t>(t->numel()) * size_of(t->dtype());
      }
    }
    for (const Tensor* t : {&l.sums.sums, &l.sums.top}) {
      if (t->defined()) total += static_cast<std::size_t>(t->numel()) * size_of(t->dtype());
    }
  }
  return total;
}

namespace {

// Rows of t; of its third axis only the first `stored`, where that is not negative.
Tensor rows_of(const Tensor& t, const std::vector<std::int64_t>& rows, std::int64_t stored) {
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> extents(t.shape().extents().begin(), t.shape().extents().end());
  extents[0] = count;
  if (t.device() != kCpu && is_floating(t.dtype())) {  // one launch instead of one per row
    const Tensor table = reshape(t, {t.size(0), -1});
    return reshape(embedding(Tensor::from(rows, {count}), table), extents);
  }
  Tensor result = Tensor::empty(Shape(extents), {t.dtype(), t.device()});
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    Tensor from = slice(t, 0, row, row + 1), into = slice(result, 0, i, i + 1);
    if (stored >= 0) {
      from = slice(from, 2, 0, stored);
      into = slice(into, 2, 0, stored);
    }
    backend(t.device()).copy(from, into);
  }
  return result;
}

}  // namespace

void KvCache::reorder(const std::vector<std::int64_t>& rows, bool same_memory) {
  for (const Layer& l : layers_) {
    const Tensor& memory = same_memory ? Tensor() : l.memory_keys.data;
    for (const Tensor& t : {l.keys.data, memory, l.sums.sums}) {
      if (!t.defined()) continue;
      for (const std::int64_t row : rows) {
        check(row >= 0 && row < t.size(0), "cache: there is no row {} among the {} that it holds",
              row, t.size(0));
      }
    }
  }
  bool is_same = true;
  for (std::size_t i = 0; i < rows.size(); ++i) is_same &= rows[i] == static_cast<std::int64_t>(i);
  const auto pick = [&](const Tensor& t, std::int64_t stored) {
    if (!t.defined() || (is_same && t.size(0) == static_cast<std::int64_t>(rows.size()))) return t;
    return rows_of(t, rows, stored);
  };
  const auto pick_rows = [&](Rows& of, std::int64_t stored) {
    of = {pick(of.data, stored), pick(of.scale, stored)};
  };
  for (Layer& l : layers_) {
    pick_rows(l.keys, l.stored);
    pick_rows(l.values, l.stored);
    l.sums = {pick(l.sums.sums, -1), pick(l.sums.top, -1)};
    if (same_memory) continue;
    pick_rows(l.memory_keys, -1);
    pick_rows(l.memory_values, -1);
  }
  if (!layers_.empty()) visible = pick(visible, -1);
}

}  // namespace qkv::nn

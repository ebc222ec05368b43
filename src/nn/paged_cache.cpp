#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/nn.h"

namespace qkv::nn {

PagedCache::PagedCache(const PagedCacheConfig& config) : config_(config) {
  const PagedCacheConfig& c = config_;
  check(c.layers > 0 && c.kv_heads > 0 && c.head_size > 0 && c.pages > 0 && c.page_size > 0,
        "paged cache: {} layers, {} heads of {}, {} pages of {} must all be positive", c.layers,
        c.kv_heads, c.head_size, c.pages, c.page_size);
  check(is_floating(c.dtype), "paged cache: keys and values can be f32, bf16 or f16, not {}",
        c.dtype);
  check(c.pages <= INT32_MAX, "paged cache: {} pages are more than a table can name", c.pages);
  // One sequence may have them all, and its length is an i32.
  check(c.page_size <= INT32_MAX / c.pages,
        "paged cache: {} pages of {} positions are more than a length can say", c.pages,
        c.page_size);
  const Shape shape{c.pages, c.kv_heads, c.page_size, c.head_size};
  for (std::int64_t i = 0; i < c.layers; ++i) {
    keys_.push_back(Tensor::empty(shape, {c.dtype, c.device}));
    values_.push_back(Tensor::empty(shape, {c.dtype, c.device}));
  }
  // The first are handed out first.
  for (std::int64_t page = c.pages; page > 0; --page) {
    free_.push_back(static_cast<std::int32_t>(page - 1));
  }
}

std::int64_t PagedCache::add() {
  auto unused = std::find_if(sequences_.begin(), sequences_.end(),
                             [](const Sequence& s) { return !s.exists; });
  if (unused == sequences_.end()) unused = sequences_.insert(unused, Sequence());
  unused->exists = true;
  return unused - sequences_.begin();
}

const PagedCache::Sequence& PagedCache::at(std::int64_t sequence) const {
  check(sequence >= 0 && sequence < static_cast<std::int64_t>(sequences_.size()) &&
            sequences_[static_cast<std::size_t>(sequence)].exists,
        "paged cache: there is no sequence {}", sequence);
  return sequences_[static_cast<std::size_t>(sequence)];
}

std::int64_t PagedCache::length(std::int64_t sequence) const { return at(sequence).length; }

void PagedCache::remove(std::int64_t sequence) {
  const std::vector<std::int32_t>& pages = at(sequence).pages;
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
  sequences_[static_cast<std::size_t>(sequence)] = {};
}

std::int64_t PagedCache::missing_pages(const Sequence& s, std::int64_t count) const {
  // Positions that are left in the pages it has: no sum here can overflow.
  const std::int64_t left =
      static_cast<std::int64_t>(s.pages.size()) * config_.page_size - s.length;
  return count <= left ? 0 : (count - left - 1) / config_.page_size + 1;
}

void PagedCache::extend(const std::vector<std::int64_t>& sequences, std::int64_t count) {
  check(count >= 0, "paged cache: {} positions more are less", count);
  std::vector<std::int64_t> once = sequences;
  std::sort(once.begin(), once.end());
  check(std::adjacent_find(once.begin(), once.end()) == once.end(),
        "paged cache: a sequence was named twice");
  std::int64_t missing = 0;
  for (const std::int64_t sequence : sequences) {
    const std::int64_t more = missing_pages(at(sequence), count);
    check(more <= free_pages() - missing,
          "paged cache: {} more positions of each sequence need more pages: {} of {} are free",
          count, free_pages(), config_.pages);
    missing += more;
  }
  for (const std::int64_t sequence : sequences) {
    Sequence& s = sequences_[static_cast<std::size_t>(sequence)];
    for (std::int64_t more = missing_pages(s, count); more > 0; --more) {
      s.pages.push_back(free_.back());
      free_.pop_back();
    }
    s.length += count;
  }
}

void PagedCache::store(std::size_t layer, const std::vector<std::int64_t>& sequences,
                       const Tensor& keys, const Tensor& values) {
  check(layer < keys_.size(), "paged cache: there is no layer {}", layer);
  const auto batch = static_cast<std::int64_t>(sequences.size());
  for (const Tensor* x : {&keys, &values}) {
    check(x->defined() && x->rank() == 4 && x->size(0) == batch && x->size(1) == config_.kv_heads &&
              x->size(3) == config_.head_size,
          "paged cache: keys and values must be [{}, {}, S, {}], got {}", batch, config_.kv_heads,
          config_.head_size, x->shape());
  }
  const std::int64_t count = keys.size(2);
  check(values.size(2) == count, "paged cache: values {} must have the positions of keys {}",
        values.shape(), keys.shape());
  for (std::int64_t b = 0; b < batch; ++b) {
    const Sequence& s = at(sequences[b]);
    check(count <= s.length, "paged cache: sequence {} has room for {} positions, got {}",
          sequences[b], s.length, count);
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t position = s.length - count + done, row = position % config_.page_size;
      const std::int64_t run = std::min(config_.page_size - row, count - done);
      const std::int64_t page = s.pages[static_cast<std::size_t>(position / config_.page_size)];
      const auto put = [&](const Tensor& x, const Tensor& pool) {
        Tensor to = slice(slice(pool, 0, page, page + 1), 2, row, row + run);
        backend(pool.device()).copy(slice(slice(x, 0, b, b + 1), 2, done, done + run), to);
      };
      put(keys, keys_[layer]);
      put(values, values_[layer]);
      done += run;
    }
  }
}

PagedCache::View PagedCache::view(std::size_t layer,
                                  const std::vector<std::int64_t>& sequences) const {
  check(layer < keys_.size(), "paged cache: there is no layer {}", layer);
  std::size_t most = 1;
  for (const std::int64_t sequence : sequences) most = std::max(most, at(sequence).pages.size());
  std::vector<std::int32_t> table(sequences.size() * most, 0), lengths;
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const Sequence& s = at(sequences[b]);
    std::copy(s.pages.begin(), s.pages.end(),
              table.begin() + static_cast<std::ptrdiff_t>(b * most));
    lengths.push_back(static_cast<std::int32_t>(s.length));
  }
  const auto batch = static_cast<std::int64_t>(sequences.size());
  return {keys_[layer], values_[layer],
          Tensor::from(table, {batch, static_cast<std::int64_t>(most)}),
          Tensor::from(lengths, {batch})};
}

AttentionOptions PagedCache::View::options() const {
  AttentionOptions options;
  options.mask = Mask::lengths(lengths) & Mask::causal();
  options.pages = pages;
  return options;
}

}  // namespace qkv::nn

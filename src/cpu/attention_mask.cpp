#include "cpu/attention_mask.h"

#include <algorithm>
#include <limits>

namespace qkv::cpu {

BlockMask::BlockMask(const AttentionProblem& problem, std::int64_t sequence)
    : problem_(problem),
      sequence_(problem.sequences[sequence]),
      batch_(sequence_.q_batch),
      needs_bytes_(problem.allowed.defined()),
      all_alike_(!problem.causal && problem.left < 0 && problem.right < 0 &&
                 !problem.has_global() && sequence_.q_seeing >= sequence_.q_rows) {
  if (!problem.has_global()) return;
  needs_bytes_ = true;
  const Tensor& global = problem.global_positions;
  const bool* flags = global.defined() ? global.data<bool>() + batch_ * global.stride(0) : nullptr;
  global_count_.resize(static_cast<std::size_t>(sequence_.k_rows) + 1);
  for (std::int64_t j = 0; j < sequence_.k_rows; ++j) {
    const bool is_one =
        j < problem.global_first || (flags != nullptr && flags[j * global.stride(1)]);
    global_count_[j + 1] = global_count_[j] + (is_one ? 1 : 0);
  }
}

bool BlockMask::is_global(std::int64_t position) const {
  return position >= 0 && position < sequence_.k_rows &&
         global_before(position + 1) > global_before(position);
}

std::int64_t BlockMask::global_before(std::int64_t position) const {
  return global_count_.empty() ? 0 : global_count_[position];
}

void BlockMask::set_rows(std::int64_t head, const std::int64_t* rows, std::int64_t count) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  head_ = head;
  rows_.assign(rows, rows + count);
  intervals_.resize(static_cast<std::size_t>(count));
  ends_.resize(static_cast<std::size_t>(count));
  if (all_alike_) {
    const KeyInterval all{0, sequence_.k_visible};
    std::fill(intervals_.begin(), intervals_.end(), all);
    std::fill(ends_.begin(), ends_.end(), all.end);
    reach_ = near_ = common_ = all;
    return;
  }
  reach_ = {kFar, 0};
  common_ = {0, kFar};
  std::int64_t farthest_global = 0;  // global keys that a row sees end here
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t position = rows[r] + sequence_.offset;
    std::int64_t end = rows[r] < sequence_.q_seeing ? sequence_.k_visible : 0;
    if (problem_.causal) end = std::min(end, position + 1);
    end = std::max<std::int64_t>(end, 0);
    KeyInterval seen{0, end};
    const bool unbound = !global_count_.empty() && is_global(position);
    if (problem_.left >= 0 && !unbound)
      seen.begin = std::max<std::int64_t>(0, position - problem_.left);
    if (problem_.right >= 0 && !unbound) seen.end = std::min(end, position + problem_.right + 1);
    if (seen.end <= seen.begin) seen = {0, 0};
    intervals_[r] = seen;
    ends_[r] = end;
    if (seen.end > seen.begin) {
      reach_.begin = std::min(reach_.begin, seen.begin);
      reach_.end = std::max(reach_.end, seen.end);
    }
    if (global_before(end) > 0) farthest_global = std::max(farthest_global, end);
    common_.begin = std::max(common_.begin, seen.begin);
    common_.end = std::min(common_.end, seen.end);
  }
  if (reach_.end <= reach_.begin) reach_ = {0, 0};
  near_ = reach_;
  if (farthest_global > 0) reach_ = {0, std::max(reach_.end, farthest_global)};
}

TileKind BlockMask::classify(std::int64_t key_begin, std::int64_t key_end) const {
  if (key_end <= reach_.begin || key_begin >= reach_.end) return TileKind::hidden;
  const bool common = key_begin >= common_.begin && key_end <= common_.end;
  if (common && !problem_.allowed.defined()) return TileKind::full;
  if (!needs_bytes_) return TileKind::partial;
  const bool is_near = key_end > near_.begin && key_begin < near_.end;
  if (!is_near && global_before(key_end) == global_before(key_begin)) return TileKind::hidden;

  bool any = false, all = true;
  for (std::size_t r = 0; r < rows_.size() && (!any || all); ++r) {
    const KeyInterval& seen = intervals_[r];
    const std::int64_t begin = std::max(seen.begin, key_begin), end = std::min(seen.end, key_end);
    const std::int64_t global_end = std::clamp(ends_[r], key_begin, key_end);
    const bool has_global = global_before(global_end) > global_before(key_begin);
    if (begin >= end && !has_global) {
      all = false;
      continue;
    }
    all = all && begin <= key_begin && end >= key_end;
    if (!problem_.allowed.defined()) {
      any = true;
      continue;
    }
    const Tensor& allowed = problem_.allowed;
    const bool* row = allowed.data<bool>() + batch_ * allowed.stride(0) +
                      head_ * allowed.stride(1) + rows_[r] * allowed.stride(2);
    const std::int64_t stride = allowed.stride(3);
    for (std::int64_t j = key_begin; j < key_end; ++j) {
      if (row[j * stride]) {
        any = true;
      } else {
        all = false;
      }
    }
  }
  return !any ? TileKind::hidden : all ? TileKind::full : TileKind::partial;
}

void BlockMask::write_bytes(std::int64_t r, std::int64_t key_begin, std::int64_t key_end,
                            std::uint8_t* visible) const {
  const std::int64_t keys = key_end - key_begin;
  const std::int64_t begin = std::clamp<std::int64_t>(intervals_[r].begin - key_begin, 0, keys);
  const std::int64_t end = std::clamp<std::int64_t>(intervals_[r].end - key_begin, begin, keys);
  std::fill(visible, visible + begin, std::uint8_t{0});
  std::fill(visible + begin, visible + end, std::uint8_t{1});
  std::fill(visible + end, visible + keys, std::uint8_t{0});
  if (!global_count_.empty()) {
    for (std::int64_t j = key_begin; j < std::min(key_end, ends_[r]); ++j) {
      if (global_count_[j + 1] > global_count_[j]) visible[j - key_begin] = 1;
    }
  }
  if (problem_.allowed.defined()) {
    const Tensor& allowed = problem_.allowed;
    const std::int64_t stride = allowed.stride(3);
    const bool* row = allowed.data<bool>() + batch_ * allowed.stride(0) +
                      head_ * allowed.stride(1) + rows_[r] * allowed.stride(2) + key_begin * stride;
    if (stride == 1) {  // a loop of its own, which the compiler makes one of vectors
      for (std::int64_t j = 0; j < keys; ++j) {
        visible[j] = static_cast<std::uint8_t>(visible[j] & (row[j] ? 1 : 0));
      }
    } else {
      for (std::int64_t j = 0; j < keys; ++j) {
        visible[j] = static_cast<std::uint8_t>(visible[j] & (row[j * stride] ? 1 : 0));
      }
    }
  }
}

}  // namespace qkv::cpu

#include "cpu/attention_gradient_split.h"

#include <algorithm>
#include <numeric>

#include "cpu/attention_gradient.h"
#include "cpu/attention_mask.h"

namespace qkv::cpu {
namespace {

// Enough tasks to keep the threads of a large machine busy; more would only mean more partial sums.
constexpr std::int64_t kTasks = 32;

std::int64_t blocks(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// What heads see alike is asked of the first one: outside of what a block of rows reaches, no head
// sees anything.
void find_rows(const AttentionProblem& problem, std::int64_t sequence,
               std::vector<GradientRange>& parts) {
  for (GradientRange& part : parts) part.rows = 0;
  const std::int64_t q_rows = problem.sequences[sequence].q_rows;
  BlockMask mask(problem, sequence);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(kGradientRows));
  for (std::int64_t first = 0; first < q_rows; first += kGradientRows) {
    const std::int64_t count = std::min(kGradientRows, q_rows - first);
    std::iota(rows.begin(), rows.end(), first);
    mask.set_rows(0, rows.data(), count);
    const KeyInterval reach = mask.reach();
    for (GradientRange& part : parts) {
      if (reach.end <= part.first_key || reach.begin >= part.first_key + part.keys) continue;
      if (part.rows == 0) part.first_row = first;
      part.rows = first + count - part.first_row;
    }
  }
}

}  // namespace

GradientSplit split_gradient(const AttentionProblem& problem, std::int64_t sequence) {
  const AttentionSequence& s = problem.sequences[sequence];
  if (s.k_visible == 0 || s.q_rows == 0) return {};
  const auto pairs = static_cast<std::int64_t>(problem.sequences.size()) * problem.key_heads;
  const bool by_rows = 2 * s.k_visible <= s.q_rows;
  const std::int64_t extent = by_rows ? s.q_rows : s.k_visible;
  const std::int64_t unit = by_rows ? kGradientRows : kGradientKeys;
  const std::int64_t step = blocks(blocks(extent, unit), blocks(kTasks, pairs)) * unit;
  std::vector<GradientRange> parts;
  for (std::int64_t first = 0; first < extent; first += step) {
    const std::int64_t count = std::min(step, extent - first);
    parts.push_back(by_rows ? GradientRange{0, s.k_visible, first, count}
                            : GradientRange{first, count, 0, s.q_rows});
  }
  const bool is_one = parts.size() == 1;
  if (!by_rows && !is_one) find_rows(problem, sequence, parts);
  return {parts, by_rows || is_one, !by_rows || is_one};
}

}  // namespace qkv::cpu

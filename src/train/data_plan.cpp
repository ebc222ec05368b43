#include "train/data_plan.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace qkv::data {
namespace {

// Examples that are sorted by length at once. What is drawn together changes with every epoch as
// long as there are many pools, or many examples of the same length.
constexpr std::size_t kPool = std::size_t{1} << 20;
constexpr std::size_t kRowsMultiple = 8;  // matrix instructions like their rows in eights

struct Keyed {
  std::uint64_t key = 0;
  std::uint32_t row = 0;
};

// By source, then by target: rising where the source is even and falling where it is odd, so that
// the target does not jump where the source changes.
std::uint64_t key_of(const Lengths& lengths) {
  const std::uint32_t target = lengths.source % 2 == 0 ? lengths.target : ~lengths.target;
  return std::uint64_t{lengths.source} << 32 | target;
}

void sort_by_length(std::span<std::uint32_t> rows, const std::vector<Lengths>& lengths) {
  std::vector<Keyed> keyed;
  keyed.reserve(rows.size());
  for (const std::uint32_t row : rows) keyed.push_back({key_of(lengths[row]), row});
  std::ranges::stable_sort(keyed, {}, &Keyed::key);
  std::ranges::transform(keyed, rows.begin(), &Keyed::row);
}

// How many of these rows make the next batch.
std::size_t batch_size(std::span<const std::uint32_t> rows, const std::vector<Lengths>& lengths,
                       std::uint64_t batch_tokens) {
  std::uint64_t source = 0, target = 0;
  std::size_t count = 0;
  for (; count < rows.size(); ++count) {
    source = std::max<std::uint64_t>(source, lengths[rows[count]].source);
    target = std::max<std::uint64_t>(target, lengths[rows[count]].target);
    if ((count + 1) * (source + target) > batch_tokens) break;
  }
  if (count < rows.size() && count > kRowsMultiple) count -= count % kRowsMultiple;
  return std::max<std::size_t>(count, 1);
}

}  // namespace

std::span<const std::uint32_t> Plan::batch(std::int64_t b) const {
  const std::uint64_t begin = begins[static_cast<std::size_t>(b)];
  return std::span(rows).subspan(begin, begins[static_cast<std::size_t>(b) + 1] - begin);
}

Plan plan_lengths(const DataOptions& options, std::int64_t epoch,
                  const std::vector<Lengths>& lengths) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  if (options.shuffle) Draws(options.seed, Decision::order, epoch).shuffle(order);
  std::vector<std::span<const std::uint32_t>> batches;
  for (std::size_t begin = 0; begin < order.size(); begin += kPool) {
    std::span<std::uint32_t> pool =
        std::span(order).subspan(begin, std::min(kPool, order.size() - begin));
    sort_by_length(pool, lengths);
    while (!pool.empty()) {
      const std::size_t size =
          batch_size(pool, lengths, static_cast<std::uint64_t>(options.batch_tokens));
      batches.push_back(pool.first(size));
      pool = pool.subspan(size);
    }
  }
  if (options.shuffle) Draws(options.seed, Decision::batches, epoch).shuffle(batches);
  Plan plan;
  plan.rows.reserve(order.size());
  for (const auto& batch : batches) {
    plan.rows.insert(plan.rows.end(), batch.begin(), batch.end());
    plan.begins.push_back(plan.rows.size());
  }
  return plan;
}

Plan plan_stream(const DataOptions& options, std::int64_t epoch, std::int64_t tokens,
                 std::int64_t step) {
  Plan plan;
  const auto steps = static_cast<std::uint64_t>(step);
  plan.cut = step;
  if (options.shuffle) {
    plan.cut -=
        static_cast<std::int64_t>(Draws(options.seed, Decision::cut, epoch).below(0, steps));
  }
  const std::int64_t behind = std::max<std::int64_t>(tokens - plan.cut, 0);
  plan.rows.resize(static_cast<std::size_t>(1 + (behind + step - 1) / step));
  std::iota(plan.rows.begin(), plan.rows.end(), 0U);
  if (options.shuffle) Draws(options.seed, Decision::order, epoch).shuffle(plan.rows);
  const auto size =
      static_cast<std::size_t>(std::max<std::int64_t>(options.batch_tokens / options.block, 1));
  for (std::size_t end = size; end < plan.rows.size(); end += size) plan.begins.push_back(end);
  plan.begins.push_back(plan.rows.size());
  return plan;
}

}  // namespace qkv::data

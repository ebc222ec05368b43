// Running text as batches: rows cut from all documents, one behind the other.
#include <algorithm>

#include "qkv/tensor.h"
#include "train/data_state.h"

namespace qkv::data {
namespace {

// Tokens [begin, end) of the text.
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

Range range_of(const Plan& plan, std::uint32_t row, std::int64_t step, std::int64_t tokens) {
  const std::int64_t end = plan.cut + row * step;
  return {row == 0 ? 0 : end - step, std::min(end, tokens)};
}

// Turns a row of text into a task: the mask, or another token, where the model has to say what was
// there; labels are what was.
class Masker {
 public:
  Masker(const Dataset::State& state, std::int64_t epoch)
      : state_(state),
        draws_(state.draws(Decision::mask, epoch)),
        chosen_(threshold(state.options.mask_rate)) {}

  // Returns how many there are, at least one.
  std::int64_t mask(std::int64_t first, std::span<std::int64_t> ids, std::int64_t* labels) const {
    std::int64_t count = 0;
    std::uint64_t lowest = UINT64_MAX;
    std::size_t likeliest = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto words = draws_.at(static_cast<std::uint64_t>(first) + i);
      const bool is_separator =
          std::ranges::find(state_.around.back, ids[i]) != state_.around.back.end();
      // A separator only where there is nothing else.
      const std::uint64_t rank = words[0] + (is_separator ? std::uint64_t{1} << 32 : 0);
      if (rank < lowest) lowest = rank, likeliest = i;
      if (rank >= chosen_) continue;
      replace(words, ids[i], labels[i]);
      ++count;
    }
    if (count > 0) return count;
    replace(draws_.at(static_cast<std::uint64_t>(first) + likeliest), ids[likeliest],
            labels[likeliest]);
    return 1;
  }

 private:
  void replace(const std::array<std::uint32_t, 4>& words, std::int64_t& id,
               std::int64_t& label) const {
    label = id;
    const std::uint64_t tenth = std::uint64_t{words[1]} * 10 >> 32;
    if (tenth < 8) id = state_.mask_id;
    if (tenth == 8) id = state_.ordinary[words[2] * state_.ordinary.size() >> 32];
  }

  const Dataset::State& state_;
  Draws draws_;
  std::uint64_t chosen_;
};

}  // namespace

Batch make_text_batch(const Dataset::State& state, const Plan& plan,
                      std::span<const std::uint32_t> rows) {
  const std::int64_t tokens = state.row_tokens();
  std::vector<Range> ranges;
  std::int64_t longest = 0;
  for (const std::uint32_t row : rows) {
    // Cuts lie between what is predicted; a row has the token before its first, too.
    Range range = range_of(plan, row, state.row_step(), tokens - 1);
    ++range.end;
    ranges.push_back(range);
    longest = std::max(longest, range.size());
  }
  Batch batch;
  const Shape shape{static_cast<std::int64_t>(rows.size()), longest};
  const auto padding = static_cast<double>(std::max<std::int64_t>(state.model.pad_id, 0));
  // No mask: what is behind a row's end changes nothing before it.
  batch.input.ids = Tensor::full(shape, padding, {DType::i64});
  batch.labels = Tensor::full(shape, kIgnored, {DType::i64});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * longest, size = ranges[i].size();
    std::int64_t* ids = batch.input.ids.data<std::int64_t>() + at;
    state.copy_stream(ranges[i].begin, {ids, static_cast<std::size_t>(size)});
    std::copy_n(ids, size, batch.labels.data<std::int64_t>() + at);
    batch.tokens += size - 1;
    batch.read += size;
  }
  return batch;
}

Batch make_masked_batch(const Dataset::State& state, const Plan& plan,
                        std::span<const std::uint32_t> rows, std::int64_t epoch) {
  const std::vector<std::int64_t>&front = state.around.front, &back = state.around.back;
  const auto around = static_cast<std::int64_t>(front.size() + back.size());
  std::vector<Range> ranges;
  std::int64_t longest = 0, shortest = INT64_MAX;
  for (const std::uint32_t row : rows) {
    ranges.push_back(range_of(plan, row, state.row_step(), state.row_tokens()));
    longest = std::max(longest, ranges.back().size() + around);
    shortest = std::min(shortest, ranges.back().size() + around);
  }
  Batch batch;
  const Shape shape{static_cast<std::int64_t>(rows.size()), longest};
  const auto padding = static_cast<double>(std::max<std::int64_t>(state.model.pad_id, 0));
  batch.input.ids = Tensor::full(shape, padding, {DType::i64});
  batch.labels = Tensor::full(shape, kIgnored, {DType::i64});
  if (shortest < longest) batch.input.mask = Tensor::zeros(shape, {DType::u8});
  const Masker masker(state, epoch);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * longest, size = ranges[i].size();
    std::int64_t* ids = batch.input.ids.data<std::int64_t>() + at;
    std::int64_t* labels = batch.labels.data<std::int64_t>() + at + front.size();
    const std::span<std::int64_t> text(ids + front.size(), static_cast<std::size_t>(size));
    std::ranges::copy(front, ids);
    state.copy_stream(ranges[i].begin, text);
    std::ranges::copy(back, text.data() + size);
    batch.tokens += masker.mask(ranges[i].begin, text, labels);
    batch.read += size + around;
    if (shortest < longest) {
      std::fill_n(batch.input.mask.data<std::uint8_t>() + at, size + around, std::uint8_t{1});
    }
  }
  return batch;
}

}  // namespace qkv::data

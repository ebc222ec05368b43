// Pairs and labelled texts as batches, padded on the right.
#include <algorithm>

#include "qkv/tensor.h"
#include "train/data_state.h"

namespace qkv::data {
namespace {

std::int64_t source_size(const Example& example, bool with_prefix) {
  return static_cast<std::int64_t>(example.source.size() +
                                   (with_prefix ? example.file.prefix.size() : 0));
}

// ids and mask of the sources.
void fill_sources(const Dataset::State& state, std::span<const std::uint32_t> rows,
                  std::int64_t epoch, Batch& batch) {
  std::vector<std::int64_t> lengths;
  std::vector<bool> prefixed;
  for (const std::uint32_t row : rows) {
    const Example example = state.example(row);
    prefixed.push_back(state.has_prefix(row, example, epoch));
    lengths.push_back(source_size(example, prefixed.back()));
    batch.examples.push_back(row);
  }
  const auto [shortest, longest] = std::ranges::minmax(lengths);
  const Shape shape{static_cast<std::int64_t>(rows.size()), longest};
  const auto padding = static_cast<double>(std::max<std::int64_t>(state.model.pad_id, 0));
  batch.input.ids = Tensor::full(shape, padding, {DType::i64});
  if (shortest < longest) batch.input.mask = Tensor::zeros(shape, {DType::u8});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i) * longest;
    batch.read += copy_source(state, state.example(rows[i]), prefixed[i],
                              batch.input.ids.data<std::int64_t>() + at);
    if (shortest < longest) {
      std::fill_n(batch.input.mask.data<std::uint8_t>() + at, lengths[i], std::uint8_t{1});
    }
  }
}

}  // namespace

std::int64_t copy_source(const Dataset::State& state, const Example& example, bool with_prefix,
                         std::int64_t* to) {
  const std::size_t front = std::min(state.around.front.size(), example.source.size());
  state.copy_ids(example.source.first(front), to);
  to += front;
  if (with_prefix) to = std::ranges::copy(example.file.prefix, to).out;
  state.copy_ids(example.source.subspan(front), to);
  return source_size(example, with_prefix);
}

Batch make_pair_batch(const Dataset::State& state, std::span<const std::uint32_t> rows,
                      std::int64_t epoch) {
  Batch batch;
  fill_sources(state, rows, epoch, batch);
  std::int64_t longest = 0;
  for (const std::uint32_t row : rows) {
    longest = std::max(longest, std::int64_t{state.example(row).record.target});
  }
  const Shape shape{static_cast<std::int64_t>(rows.size()), longest};
  const auto padding = static_cast<double>(std::max<std::int64_t>(state.model.pad_id, 0));
  batch.labels = Tensor::full(shape, kIgnored, {DType::i64});
  batch.input.decoder_ids = Tensor::full(shape, padding, {DType::i64});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i) * longest;
    const Example example = state.example(rows[i]);
    std::int64_t* labels = batch.labels.data<std::int64_t>() + at;
    std::int64_t* inputs = batch.input.decoder_ids.data<std::int64_t>() + at;
    state.copy_ids(example.target, labels);
    const auto count = static_cast<std::int64_t>(example.target.size());
    inputs[0] = state.model.decoder_start_id;  // then the labels, one later
    std::copy_n(labels, std::min(count, longest - 1), inputs + 1);
    batch.tokens += count;
  }
  batch.read += batch.tokens;
  return batch;
}

Batch make_labelled_batch(const Dataset::State& state, std::span<const std::uint32_t> rows,
                          std::int64_t epoch) {
  Batch batch;
  fill_sources(state, rows, epoch, batch);
  const auto count = static_cast<std::int64_t>(rows.size());
  batch.labels = Tensor::empty({count}, {DType::i64});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    batch.labels.data<std::int64_t>()[i] = state.example(rows[i]).record.label;
  }
  batch.tokens = count;
  return batch;
}

}  // namespace qkv::data

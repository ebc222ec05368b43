#include "train/data_state.h"

#include <algorithm>

#include "core/check.h"

namespace qkv {
namespace data {

std::shared_ptr<const Plan> Plans::get(std::int64_t epoch, const Make& make) {
  const std::scoped_lock lock(mutex_);
  if (known_[0].epoch != epoch) std::swap(known_[0], known_[1]);
  if (known_[0].epoch != epoch) {
    known_[0] = {epoch, std::make_shared<const Plan>(make(epoch))};
  }
  return known_[0].plan;
}

}  // namespace data

std::int64_t Dataset::State::row_step() const {
  // The last token of a row of a language model is the first of the next: each is predicted once.
  if (options.task == Task::language_model) return options.block - 1;
  return options.block - static_cast<std::int64_t>(around.front.size() + around.back.size());
}

std::shared_ptr<const data::Plan> Dataset::State::plan(std::int64_t epoch) const {
  check(epoch >= 0 && epoch <= UINT32_MAX, "data: there is no epoch {}", epoch);
  return plans.get(options.shuffle ? epoch : 0, [this](std::int64_t wanted) {
    if (is_stream()) {
      const std::int64_t unpredicted = options.task == Task::language_model ? 1 : 0;
      return data::plan_stream(options, wanted, row_tokens() - unpredicted, row_step());
    }
    std::vector<data::Lengths> lengths;
    lengths.reserve(kept.size());
    for (std::int64_t i = 0; i < examples; ++i) {
      const data::Example e = example(i);
      const std::size_t before = has_prefix(i, e, wanted) ? e.file.prefix.size() : 0;
      lengths.push_back({static_cast<std::uint32_t>(e.record.source + before), e.record.target});
    }
    return data::plan_lengths(options, wanted, lengths);
  });
}

data::Example Dataset::State::example(std::int64_t number) const {
  const std::uint64_t at = kept[static_cast<std::size_t>(number)];
  const auto next = std::ranges::upper_bound(begins, at);
  const auto which = static_cast<std::size_t>(next - begins.begin()) - 1;
  const data::File& file = files[which];
  const TokenRecord& record = file.tokens.records()[at - begins[which]];
  const auto ids = file.tokens.tokens().subspan(record.first);
  return {file, record, ids.first(record.source), ids.subspan(record.source, record.target)};
}

bool Dataset::State::has_prefix(std::int64_t number, const data::Example& example,
                                std::int64_t epoch) const {
  if (example.file.prefix.empty()) return false;
  const auto words = draws(data::Decision::prefix, epoch).at(static_cast<std::uint64_t>(number));
  return words[0] < data::threshold(options.prefix_rate);
}

void Dataset::State::copy_stream(std::int64_t begin, std::span<std::int64_t> to) const {
  auto at = static_cast<std::uint64_t>(begin);
  while (!to.empty()) {
    const auto next = std::ranges::upper_bound(begins, at);
    const auto which = static_cast<std::size_t>(next - begins.begin()) - 1;
    const auto here = files[which].tokens.tokens().subspan(at - begins[which]);
    const std::size_t count = std::min(here.size(), to.size());
    copy_ids(here.first(count), to.data());
    to = to.subspan(count);
    at += count;
  }
}

void Dataset::State::copy_ids(std::span<const std::int32_t> ids, std::int64_t* to) const {
  for (const std::int32_t id : ids) {
    check(id >= 0 && id < model.vocabulary,
          "data: {} is no token of the model; was the cache of tokens damaged? Delete {}", id,
          options.cache.empty() ? "it" : options.cache);
    *to++ = id;
  }
}

}  // namespace qkv

#include "study/train_task.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "io/file.h"
#include "train/data_draws.h"

namespace qkv::study {
namespace {

using data::Decision;
using data::Draws;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kIgnored = -100;
// Tokens: the keys, the values, and the facts, of which each is a key with a value.
constexpr std::int64_t kKeys = 16, kValues = 16, kFirstFact = kKeys + kValues;
constexpr std::int64_t kBytes = 256;
constexpr std::uint64_t kLargestText = std::uint64_t{1} << 30;

enum Part : std::int64_t { keys, values, questions, parts };

// What is drawn for a part of a row.
Draws draws_of(std::uint64_t seed, std::int64_t row, Part part) {
  return {seed, Decision::study, row * parts + part};
}

// Facts, each a key and its value in one token, and then every key again in another order, with the
// value that is asked for behind it.
void add_recall(std::uint64_t seed, std::int64_t row, std::int64_t pairs, Ids& ids, Ids& labels) {
  Ids key(kKeys), order(static_cast<std::size_t>(pairs)), value;
  std::iota(key.begin(), key.end(), 0);
  std::iota(order.begin(), order.end(), 0);
  draws_of(seed, row, keys).shuffle(key);
  draws_of(seed, row, questions).shuffle(order);
  const Draws draw = draws_of(seed, row, values);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const auto at = static_cast<std::size_t>(i);
    value.push_back(static_cast<std::int64_t>(draw.below(at, kValues)));
    ids.push_back(kFirstFact + key[at] * kValues + value[at]);
    labels.push_back(kIgnored);
  }
  for (const std::int64_t pair : order) {
    const auto at = static_cast<std::size_t>(pair);
    ids.insert(ids.end(), {key[at], kKeys + value[at]});
    labels.insert(labels.end(), {kIgnored, kKeys + value[at]});
  }
}

}  // namespace

TrainTask::TrainTask(const TrainStudyOptions& options)
    : batch_(options.batch), length_(options.length), pairs_(options.pairs) {
  check(batch_ >= 1 && batch_ <= 4096, "study train: a batch must have 1 to 4096 rows, got {}",
        batch_);
  if (options.text_file.empty()) {
    check(pairs_ >= 2 && pairs_ <= kKeys, "study train: pairs must be 2 to {}, got {}", kKeys,
          pairs_);
    length_ = 3 * pairs_;
    return;
  }
  check(length_ >= 2 && length_ <= 4096, "study train: the length must be 2 to 4096, got {}",
        length_);
  text_ = read_file(options.text_file, kLargestText);
  check(static_cast<std::int64_t>(text_.size()) > length_,
        "study train: {} has {} bytes; a row needs more than {}", options.text_file, text_.size(),
        length_);
}

TaskBatch TrainTask::batch(std::uint64_t seed, std::int64_t step) const {
  Ids ids, labels;
  for (std::int64_t row = step * batch_; row < (step + 1) * batch_; ++row) {
    if (text_.empty()) {
      add_recall(seed, row, pairs_, ids, labels);
      continue;
    }
    const auto length = static_cast<std::size_t>(length_);
    const std::uint64_t first = draws_of(seed, row, keys).below(0, text_.size() - length + 1);
    for (std::size_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<unsigned char>(text_[first + i]));
    }
  }
  const Shape shape{batch_, length_};
  return {Tensor::from(ids, shape), Tensor::from(text_.empty() ? labels : ids, shape)};
}

std::int64_t TrainTask::vocabulary() const {
  return text_.empty() ? kFirstFact + kKeys * kValues : kBytes;
}
std::int64_t TrainTask::length() const { return length_; }
double TrainTask::guessing() const {
  return std::log(static_cast<double>(text_.empty() ? kValues : kBytes));
}

}  // namespace qkv::study

// What a Dataset holds.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>

#include "io/token_file.h"
#include "qkv/data.h"
#include "train/data_encode.h"
#include "train/data_plan.h"

namespace qkv {
namespace data {

// A label that counts for nothing, as CrossEntropyOptions has it.
inline constexpr std::int64_t kIgnored = -100;

// A text file in tokens.
struct File {
  TokenFile tokens;
  std::string path;
  Ids prefix{};
  // The file as it was when it was tokenised.
  std::uint64_t bytes = 0;
  std::filesystem::file_time_type changed{};
};

// An example of a file, in tokens.
struct Example {
  const File& file;
  const TokenRecord& record;
  std::span<const std::int32_t> source, target;
};

// The plans of the last two epochs asked for: one is in use while the next is prepared.
class Plans {
 public:
  using Make = std::function<Plan(std::int64_t epoch)>;
  std::shared_ptr<const Plan> get(std::int64_t epoch, const Make& make);

 private:
  std::mutex mutex_;
  struct Known {
    std::int64_t epoch = -1;
    std::shared_ptr<const Plan> plan;
  };
  std::array<Known, 2> known_;  // the latest first
};

}  // namespace data

struct Dataset::State {
  DataOptions options;
  ModelInfo model;
  std::vector<data::File> files{};
  // Of all files before each: records, or tokens of running text; and of all at the end.
  std::vector<std::uint64_t> begins{0};
  std::vector<std::uint32_t> kept{};  // the records that are examples, counted through all files
  std::int64_t examples = 0, skipped = 0, tokens = 0;

  Around around{};                       // a text
  std::int64_t mask_id = -1;             // masked_lm
  std::vector<std::int32_t> ordinary{};  // masked_lm: tokens that may stand in for another
  mutable data::Plans plans{};

  bool is_stream() const {
    return options.task == Task::language_model || options.task == Task::masked_lm;
  }
  // Tokens that a row of running text has of its own, and the most that go into it.
  std::int64_t row_step() const;
  std::int64_t row_tokens() const { return static_cast<std::int64_t>(begins.back()); }

  std::shared_ptr<const data::Plan> plan(std::int64_t epoch) const;
  data::Draws draws(data::Decision decision, std::int64_t epoch) const {
    return {options.seed, decision, options.shuffle ? epoch : 0};
  }
  data::Example example(std::int64_t number) const;
  bool has_prefix(std::int64_t number, const data::Example& example, std::int64_t epoch) const;
  // Running text, through all files.
  void copy_stream(std::int64_t begin, std::span<std::int64_t> to) const;
  // Ids out of a file, which may have changed under us: Error unless the model knows them.
  void copy_ids(std::span<const std::int32_t> ids, std::int64_t* to) const;
};

namespace data {

// The rows of a batch as the model takes them.
Batch make_pair_batch(const Dataset::State& state, std::span<const std::uint32_t> rows,
                      std::int64_t epoch);
Batch make_labelled_batch(const Dataset::State& state, std::span<const std::uint32_t> rows,
                          std::int64_t epoch);
Batch make_text_batch(const Dataset::State& state, const Plan& plan,
                      std::span<const std::uint32_t> rows);
Batch make_masked_batch(const Dataset::State& state, const Plan& plan,
                        std::span<const std::uint32_t> rows, std::int64_t epoch);

// The source of an example with its prefix, into `to`; returns how many tokens.
std::int64_t copy_source(const Dataset::State& state, const Example& example, bool with_prefix,
                         std::int64_t* to);

}  // namespace data
}  // namespace qkv

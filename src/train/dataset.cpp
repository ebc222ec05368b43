#include <algorithm>
#include <fstream>
#include <limits>

#include "core/check.h"
#include "io/shown.h"
#include "train/data_state.h"
#include "train/data_store.h"

namespace qkv {
namespace {

void check_options(const DataOptions& o, const ModelInfo& model) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  check(!o.files.empty(), "data: no files are named");
  check(o.source_column >= 0 && o.target_column >= 0, "data: columns count from 0, got {} and {}",
        o.source_column, o.target_column);
  check(o.prefix_rate >= 0 && o.prefix_rate <= 1, "data: prefix_rate must be from 0 to 1, got {}",
        o.prefix_rate);
  check(o.mask_rate > 0 && o.mask_rate <= 1,
        "data: mask_rate must be above 0 and at most 1, got {}", o.mask_rate);
  check(o.max_source >= 1 && o.max_source <= kMost && o.max_target >= 1 && o.max_target <= kMost,
        "data: max_source and max_target must be from 1 to {}, got {} and {}", kMost, o.max_source,
        o.max_target);
  check(o.batch_tokens >= 1, "data: batch_tokens must be at least 1, got {}", o.batch_tokens);
  check(o.block >= 2 && o.block <= kMost, "data: block must be from 2 to {}, got {}", kMost,
        o.block);
  const bool in_blocks = o.task == Task::language_model || o.task == Task::masked_lm;
  check(!in_blocks || model.max_positions == 0 || o.block <= model.max_positions,
        "data: a block of {} tokens is more than the {} positions of the model; make it smaller",
        o.block, model.max_positions);
}

// Of all files, for the options' progress.
class Reporter {
 public:
  Reporter(const DataOptions& options, const std::vector<data::TextFile>& files)
      : progress_(options.progress) {
    for (const data::TextFile& file : files) total_ += static_cast<std::int64_t>(file.bytes());
  }
  void operator()(std::uint64_t bytes) {
    done_ = std::min(total_, done_ + static_cast<std::int64_t>(bytes));
    if (progress_) progress_(done_, total_);
  }

 private:
  std::function<void(std::int64_t, std::int64_t)> progress_;
  std::int64_t done_ = 0, total_ = 0;
};

void read_files(Dataset::State& state, const Tokenizer& tokenizer) {
  const DataOptions& options = state.options;
  const data::Encoder encoder(options, tokenizer, state.model);
  std::vector<data::TextFile> texts;  // all, before any is read: a missing one is known at once
  for (const DataFile& file : options.files) {
    texts.emplace_back(file.path, encoder.chunks_of());
    check(!texts.back().is_list() || state.is_stream(),
          "{}: a list of texts has no columns, which {} needs", file.path, to_string(options.task));
  }
  Reporter report(options, texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const data::TextFile& text = texts[i];
    data::File file{.tokens = data::tokenize_file(text, encoder, options.cache, std::ref(report)),
                    .path = text.path(),
                    .prefix = prefix_tokens(tokenizer, options.files[i].prefix),
                    .bytes = text.bytes(),
                    .changed = text.changed()};
    const std::size_t count =
        state.is_stream() ? file.tokens.tokens().size() : file.tokens.records().size();
    state.begins.push_back(state.begins.back() + count);
    state.skipped += static_cast<std::int64_t>(file.tokens.left_out());
    state.examples += static_cast<std::int64_t>(file.tokens.examples());
    state.tokens += static_cast<std::int64_t>(file.tokens.tokens().size());
    state.files.push_back(std::move(file));
  }
}

// Leaves out what is too long.
void choose_examples(Dataset::State& state) {
  const DataOptions& o = state.options;
  const std::int64_t positions = state.model.max_positions > 0
                                     ? state.model.max_positions
                                     : std::numeric_limits<std::int64_t>::max();
  check(state.begins.back() <= std::numeric_limits<std::uint32_t>::max(),
        "data: {} examples are too many", state.begins.back());
  state.tokens = 0;
  for (std::size_t f = 0; f < state.files.size(); ++f) {
    const data::File& file = state.files[f];
    const std::size_t before = o.prefix_rate > 0 ? file.prefix.size() : 0;
    const auto records = file.tokens.records();
    for (std::size_t i = 0; i < records.size(); ++i) {
      const auto source = static_cast<std::int64_t>(records[i].source + before);
      const std::int64_t target = records[i].target;
      if (source > std::min(o.max_source, positions) ||
          target > std::min(o.max_target, positions)) {
        ++state.skipped;
        continue;
      }
      state.kept.push_back(static_cast<std::uint32_t>(state.begins[f] + i));
      state.tokens += records[i].source + target;
    }
  }
  state.examples = static_cast<std::int64_t>(state.kept.size());
  check(state.examples > 0,
        "data: there are no examples in {}{}: {} were left out as empty, or longer than {} and {} "
        "tokens",
        o.files.front().path, o.files.size() > 1 ? " and the other files" : "", state.skipped,
        o.max_source, o.max_target);
}

void prepare_masking(Dataset::State& state, const Tokenizer& tokenizer) {
  const auto mask = tokenizer.mask_id();
  check(mask.has_value(), "data: masked-lm needs a tokenizer with a token [MASK] or <mask>");
  state.mask_id = *mask;
  const std::int64_t size = std::min(tokenizer.size(), state.model.vocabulary);
  for (std::int64_t id = 0; id < size; ++id) {
    if (!tokenizer.is_special(id)) state.ordinary.push_back(static_cast<std::int32_t>(id));
  }
  check(!state.ordinary.empty(), "data: the tokenizer has special tokens only");
  check(state.row_step() >= 1, "data: a block of {} tokens has no room beside what is around it",
        state.options.block);
}

}  // namespace

Dataset::Dataset(const DataOptions& options, const Tokenizer& tokenizer, const ModelInfo& model) {
  check_options(options, model);
  const auto state = std::make_shared<State>();
  state->options = options;
  state->model = model;
  if (options.task != Task::language_model) state->around = around_text(tokenizer);
  if (options.task == Task::masked_lm) prepare_masking(*state, tokenizer);
  read_files(*state, tokenizer);
  if (state->is_stream()) {
    check(state->tokens >= 2, "data: there are {} tokens in {}, too few to predict any",
          state->tokens, options.files.front().path);
    check(state->tokens / state->row_step() < std::numeric_limits<std::uint32_t>::max(),
          "data: {} tokens in rows of {} are too many rows", state->tokens, options.block);
  } else {
    choose_examples(*state);
  }
  state_ = state;
}

std::int64_t Dataset::examples() const { return state_->examples; }
std::int64_t Dataset::skipped() const { return state_->skipped; }
std::int64_t Dataset::tokens() const { return state_->tokens; }
const DataOptions& Dataset::options() const { return state_->options; }

std::uint64_t Dataset::fingerprint(std::size_t file) const {
  check(file < state_->files.size(), "data: there is no file {}, there are {}", file,
        state_->files.size());
  return state_->files[file].tokens.checksum();
}

std::int64_t Dataset::batches(std::int64_t epoch) const { return state_->plan(epoch)->batches(); }

Batch Dataset::batch(DataPosition position) const {
  const auto [epoch, number] = position;
  const std::shared_ptr<const data::Plan> plan = state_->plan(epoch);
  check(number >= 0 && number < plan->batches(), "data: epoch {} has {} batches, there is no {}",
        epoch, plan->batches(), number);
  const auto rows = plan->batch(number);
  switch (state_->options.task) {
    case Task::language_model: return data::make_text_batch(*state_, *plan, rows);
    case Task::masked_lm: return data::make_masked_batch(*state_, *plan, rows, epoch);
    case Task::sequence_to_sequence: return data::make_pair_batch(*state_, rows, epoch);
    default: return data::make_labelled_batch(*state_, rows, epoch);
  }
}

DataPosition Dataset::after(DataPosition position) const {
  if (position.batch + 1 < batches(position.epoch)) return {position.epoch, position.batch + 1};
  return {position.epoch + 1, 0};
}

ExampleText Dataset::text(std::int64_t example) const {
  const State& s = *state_;
  check(!s.is_stream(), "data: {} has no examples with texts", to_string(s.options.task));
  check(example >= 0 && example < s.examples, "data: there is no example {}, there are {}", example,
        s.examples);
  const data::Example found = s.example(example);
  const data::File& file = found.file;
  std::error_code error;
  const bool same = std::filesystem::file_size(file.path, error) == file.bytes && !error &&
                    std::filesystem::last_write_time(file.path, error) == file.changed;
  check(same, "{}: the file was changed after it was tokenised; begin again", file.path);
  std::string line(found.record.line_bytes, '\0');
  std::ifstream input(file.path, std::ios::binary);
  input.seekg(static_cast<std::streamoff>(found.record.line));
  input.read(line.data(), static_cast<std::streamsize>(line.size()));
  check(input.good(), "{}: cannot be read", file.path);
  const auto columns = data::columns_of(line);
  const auto column = [&](int number) {
    check(static_cast<std::size_t>(number) < columns.size(), "{}: there is no column {}", file.path,
          number);
    return std::string(columns[static_cast<std::size_t>(number)]);
  };
  return {column(s.options.source_column), column(s.options.target_column)};
}

std::vector<std::int64_t> Dataset::source(std::int64_t example, bool with_prefix) const {
  const State& s = *state_;
  check(!s.is_stream(), "data: {} has no examples", to_string(s.options.task));
  check(example >= 0 && example < s.examples, "data: there is no example {}, there are {}", example,
        s.examples);
  const data::Example found = s.example(example);
  std::vector<std::int64_t> ids(found.source.size() + found.file.prefix.size());
  ids.resize(static_cast<std::size_t>(data::copy_source(s, found, with_prefix, ids.data())));
  return ids;
}

}  // namespace qkv

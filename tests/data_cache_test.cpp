// The cache of tokens: used when it is true, made again when it is not. And batches made ahead.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "expect_error.h"
#include "io/token_file.h"
#include "qkv/data.h"
#include "support/data_folder.h"
#include "support/mutate.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using testing::DataFolder;
using testing::Ids;
using testing::shown;

const ModelInfo kModel = testing::model_info(ModelKind::encoder_decoder);

DataOptions cached(const DataFolder& folder) {
  return {.task = Task::sequence_to_sequence,
          .files = {{folder.path("x.tsv")}},
          .cache = folder.path("deep/cache")};
}

std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

struct Opened {
  Dataset data;
  bool tokenised;  // a file of the cache was written
};
Opened open(const DataOptions& options, const Tokenizer& tokenizer,
            const ModelInfo& model = kModel) {
  const auto state = [&] {
    std::string text;
    if (!fs::exists(options.cache)) return text;
    for (const fs::path& path : files_in(options.cache)) {
      text += path.string() + std::to_string(fs::last_write_time(path).time_since_epoch().count());
    }
    return text;
  };
  const std::string before = state();
  Dataset data(options, tokenizer, model);
  return {data, state() != before};
}

TEST(DataCache, GivesTheSameBatchesAndIsMadeOnce) {
  const DataFolder folder;
  folder.pairs("x.tsv", 300);
  const Tokenizer tokenizer = folder.tokenizer();
  DataOptions options = cached(folder);
  std::int64_t told = 0, total = 0;
  options.progress = [&](std::int64_t done, std::int64_t of) { told = done, total = of; };
  const Opened first = open(options, tokenizer), second = open(options, tokenizer);
  EXPECT_TRUE(first.tokenised);
  EXPECT_FALSE(second.tokenised);
  EXPECT_EQ(told, static_cast<std::int64_t>(fs::file_size(folder.path("x.tsv"))));
  EXPECT_EQ(total, told);
  EXPECT_EQ(files_in(options.cache).size(), 1U);
  const DataOptions held{.task = options.task, .files = options.files};
  const std::string expected = shown(Dataset(held, tokenizer, kModel), 2);
  EXPECT_EQ(shown(first.data, 2), expected);
  EXPECT_EQ(shown(second.data, 2), expected);
  EXPECT_EQ(second.data.text(17).source, first.data.text(17).source);
  // What only chooses among the examples needs no new tokens.
  options.max_source = 6;
  options.seed = 3;
  options.prefix_rate = 0.5;
  options.files[0].prefix = ">>x<<";
  EXPECT_FALSE(open(options, tokenizer).tokenised);
}

TEST(DataCache, IsMadeAgainWhenAnythingChanged) {
  const DataFolder folder;
  folder.write("x.tsv", "a\tb\tc\nd\te\tf\n");
  DataOptions options = cached(folder);
  const Tokenizer tokenizer = folder.tokenizer();
  EXPECT_TRUE(open(options, tokenizer).tokenised);
  ModelInfo other_eos = kModel;
  other_eos.eos_ids = {2};
  EXPECT_TRUE(open(options, tokenizer, other_eos).tokenised);
  options.target_column = 2;
  EXPECT_TRUE(open(options, tokenizer).tokenised);
  const Opened templated = open(options, folder.tokenizer(true));
  EXPECT_TRUE(templated.tokenised);
  EXPECT_EQ(templated.data.source(0), (Ids{4, 5, 1}));
  const auto time = fs::last_write_time(folder.path("x.tsv"));
  folder.write("x.tsv", "a\tb\tc\nd\te\tg\n");  // as long as before, at the same time
  fs::last_write_time(folder.path("x.tsv"), time);
  const Opened changed = open(options, tokenizer);
  EXPECT_TRUE(changed.tokenised);
  EXPECT_EQ(changed.data.text(1).target, "g");
  EXPECT_EQ(files_in(options.cache).size(), 5U);
  EXPECT_FALSE(open(options, tokenizer).tokenised);
}

TEST(DataCache, IsMadeAgainWhenItIsNotWhole) {
  const DataFolder folder;
  folder.pairs("x.tsv", 20);
  const Tokenizer tokenizer = folder.tokenizer();
  const DataOptions options = cached(folder);
  const std::string expected = shown(open(options, tokenizer).data, 0);
  const fs::path path = files_in(options.cache).at(0);
  const auto size = fs::file_size(path);
  for (const std::uintmax_t kept : {std::uintmax_t{0}, std::uintmax_t{7}, size / 2, size - 1}) {
    fs::resize_file(path, kept);
    EXPECT_EQ(shown(open(options, tokenizer).data, 0), expected);
    EXPECT_EQ(fs::file_size(path), size);
  }
  fs::resize_file(path, size + 8);
  EXPECT_EQ(shown(open(options, tokenizer).data, 0), expected);
  EXPECT_EQ(fs::file_size(path), size);
  EXPECT_EQ(files_in(options.cache).size(), 1U);  // nothing temporary is left
}

TEST(DataCache, SaysWhenItCannotBeWritten) {
  const DataFolder folder;
  folder.pairs("x.tsv", 20);
  DataOptions options = cached(folder);
  options.cache = folder.write("file", "");
  EXPECT_ERROR("the cache of tokens", Dataset(options, folder.tokenizer(), kModel));
  options.cache = folder.path("cache");
  folder.write("x.tsv", "a\tb\nc\n");
  EXPECT_ERROR("x.tsv:2", Dataset(options, folder.tokenizer(), kModel));
  EXPECT_TRUE(files_in(options.cache).empty());  // what went wrong left nothing behind
}

// A file with all there can be in it.
std::string sample(const std::string& path) {
  TokenFile::write(path, "key", [](const TokenSink& sink) {
    sink({.tokens = {1, 2, 3},
          .records = {{.first = 0, .line_bytes = 4, .source = 2, .target = 1, .label = 5}},
          .examples = 1,
          .left_out = 2});
    sink({});
    sink({.tokens = {4, 5}, .records = {{.first = 0, .line = 9, .source = 2}}, .examples = 1});
  });
  return path;
}

TEST(TokenFile, ReadsBackWhatWasWritten) {
  const DataFolder folder;
  const auto file = TokenFile::open(sample(folder.path("x.tokens")), "key");
  ASSERT_TRUE(file);
  EXPECT_EQ(std::vector(file->tokens().begin(), file->tokens().end()),
            (std::vector<std::int32_t>{1, 2, 3, 4, 5}));
  ASSERT_EQ(file->records().size(), 2U);
  EXPECT_EQ(file->records()[1], (TokenRecord{.first = 3, .line = 9, .source = 2}));
  EXPECT_EQ(file->examples(), 2U);
  EXPECT_EQ(file->left_out(), 2U);
  EXPECT_FALSE(TokenFile::open(folder.path("x.tokens"), "another key"));
  EXPECT_FALSE(TokenFile::open(folder.path("y.tokens"), "key"));
  EXPECT_FALSE(TokenFile::open(folder.path(""), "key"));
}

TEST(TokenFile, NeverTrustsADamagedFile) {
  const DataFolder folder;
  sample(folder.path("x.tokens"));
  const std::string bytes = folder.read("x.tokens");
  testing::Mutator mutate(11);
  const int memory = memfd_create("tokens", 0);  // a file without a disk, which is slow
  ASSERT_GE(memory, 0);
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  int opened = 0;
  for (int i = 0; i < 3000; ++i) {
    // Half of the changes where they hurt, in the end that counts the rest.
    std::string changed = bytes;
    if (i % 2 == 0) {
      changed = mutate(changed);
    } else {
      changed[changed.size() - 1 - mutate.below(48)] = static_cast<char>(mutate.below(256));
    }
    ASSERT_EQ(ftruncate(memory, 0), 0);
    ASSERT_EQ(pwrite(memory, changed.data(), changed.size(), 0),
              static_cast<ssize_t>(changed.size()));
    const auto file = TokenFile::open(path, "key");
    if (!file) continue;
    ++opened;
    std::int64_t sum = 0;
    for (const std::int32_t id : file->tokens()) sum += id;
    for (const TokenRecord& record : file->records()) {
      ASSERT_LE(record.first + record.source + record.target, file->tokens().size());
    }
    ASSERT_LE(file->tokens().size() * 4 + file->records().size() * 32, changed.size());
  }
  close(memory);
  EXPECT_GT(opened, 100);  // those that only change a token, a line or a count of examples
}

TEST(DataCache, TokensThatTheModelDoesNotKnowAreRefused) {
  const DataFolder folder;
  folder.write("x.tsv", "a\tb\n");
  const DataOptions options = cached(folder);
  open(options, folder.tokenizer());
  const std::string name = "deep/cache/" + files_in(options.cache).at(0).filename().string();
  std::string bytes = folder.read(name);
  for (const char damage : {'\x1F', '\x80'}) {  // 31, the first that is none; and a negative one
    bytes[0] = damage, bytes[3] = damage == '\x1F' ? '\0' : damage;
    folder.write(name, bytes);
    EXPECT_ERROR("is no token of the model; was the cache",
                 open(options, folder.tokenizer()).data.batch({}));
  }
}

TEST(Prefetch, GivesTheBatchesOfTheDataset) {
  const DataFolder folder;
  folder.pairs("x.tsv", 300);
  DataOptions options = cached(folder);
  options.batch_tokens = 200;
  options.cache.clear();
  const Dataset data(options, folder.tokenizer(), kModel);
  for (const int depth : {1, 3, 100}) {
    DataPosition position{2, data.batches(2) - 5};
    Prefetch batches(data, position, depth);
    for (int i = 0; i < 30; ++i) {
      EXPECT_EQ(batches.position(), position);
      EXPECT_EQ(shown(batches.next()), shown(data.batch(position)));
      position = data.after(position);
    }
    EXPECT_EQ(batches.position(), position);
    EXPECT_EQ(position.epoch, 3);
  }
}

TEST(Prefetch, ThrowsWhatWentWrongAndEndsAtAnyMoment) {
  const DataFolder folder;
  folder.pairs("x.tsv", 50);
  const Dataset data(cached(folder), folder.tokenizer(), kModel);
  Prefetch wrong(data, {0, 1000});
  EXPECT_ERROR("there is no 1000", wrong.next());
  EXPECT_ERROR("there is no 1000", wrong.next());
  for (int i = 0; i < 50; ++i) {
    Prefetch batches(data, {}, 1 + i % 3);
    for (int taken = 0; taken < i % 4; ++taken) batches.next();
  }
  EXPECT_ERROR("depth", Prefetch(data, {}, 0));
}

}  // namespace
}  // namespace qkv

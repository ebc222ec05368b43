// The cache of tokens: used when it is true, made again when it is not. And batches made ahead.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

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

// A file without a disk, which is slow.
class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("tokens", 0)) {}
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(const std::string& bytes) const {
    ASSERT_EQ(ftruncate(file_, 0), 0);
    ASSERT_EQ(pwrite(file_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

TEST(TokenFile, FindsEveryFlippedBit) {
  const DataFolder folder;
  sample(folder.path("x.tokens"));
  std::string bytes = folder.read("x.tokens");
  const MemoryFile memory;
  memory.write(bytes);
  ASSERT_TRUE(TokenFile::open(memory.path(), "key"));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto flip = static_cast<char>(1 << bit % 8);
    bytes[bit / 8] ^= flip;
    memory.write(bytes);
    ASSERT_FALSE(TokenFile::open(memory.path(), "key")) << "bit " << bit;
    bytes[bit / 8] ^= flip;
  }
}

TEST(TokenFile, NeverTrustsADamagedFile) {
  const DataFolder folder;
  sample(folder.path("x.tokens"));
  const std::string bytes = folder.read("x.tokens");
  testing::Mutator mutate(11);
  const MemoryFile memory;
  for (int i = 0; i < 3000; ++i) {
    // Half of the changes where they hurt, in the end that counts the rest.
    std::string changed = bytes;
    if (i % 2 == 0) {
      changed = mutate(changed);
    } else {
      changed[changed.size() - 1 - mutate.below(64)] = static_cast<char>(mutate.below(256));
    }
    memory.write(changed);
    ASSERT_EQ(TokenFile::open(memory.path(), "key").has_value(), changed == bytes) << i;
  }
}

TEST(TokenFile, HasOneChecksumInAFileAndInMemory) {
  const DataFolder folder;
  const auto source = [](std::int32_t last, std::uint64_t line) {
    return [=](const TokenSink& sink) {
      sink({.tokens = {1, 2}, .records = {{.line = line, .source = 2}}, .examples = 1});
      sink({.tokens = {last}, .records = {{.source = 1}}, .examples = 1});
    };
  };
  TokenFile::write(folder.path("x.tokens"), "key", source(3, 4));
  const std::uint64_t checksum = TokenFile::open(folder.path("x.tokens"), "key")->checksum();
  EXPECT_EQ(TokenFile::in_memory(source(3, 4)).checksum(), checksum);
  EXPECT_NE(TokenFile::in_memory(source(4, 4)).checksum(), checksum);
  EXPECT_NE(TokenFile::in_memory(source(3, 5)).checksum(), checksum);
}

// Flipped while nobody had it open: found, and made again from the text.
TEST(DataCache, IsMadeAgainWhenABitWasFlipped) {
  const DataFolder folder;
  folder.pairs("x.tsv", 20);
  const Tokenizer tokenizer = folder.tokenizer();
  const DataOptions options = cached(folder);
  const Dataset held({.task = options.task, .files = options.files}, tokenizer, kModel);
  const std::string expected = shown(held, 0);
  open(options, tokenizer);
  const std::string name = "deep/cache/" + files_in(options.cache).at(0).filename().string();
  const std::string bytes = folder.read(name);
  for (std::size_t at = 0; at < bytes.size(); at += 97) {
    std::string flipped = bytes;
    flipped[at] ^= 0x10;
    folder.write(name, flipped);
    const Dataset again = open(options, tokenizer).data;
    EXPECT_TRUE(shown(again, 0) == expected) << at;
    EXPECT_EQ(again.fingerprint(0), held.fingerprint(0));
    EXPECT_TRUE(folder.read(name) == bytes) << at;
  }
  EXPECT_ERROR("there is no file 1", held.fingerprint(1));
}

// Damaged under our eyes, after it was verified.
TEST(DataCache, TokensThatTheModelDoesNotKnowAreRefused) {
  const DataFolder folder;
  folder.write("x.tsv", "a\tb\n");
  const DataOptions options = cached(folder);
  const Dataset data = open(options, folder.tokenizer()).data;
  const std::string path = files_in(options.cache).at(0).string();
  for (const std::int32_t id : {31, -1}) {  // the first that is none; and a negative one
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .write(reinterpret_cast<const char*>(&id), sizeof id);
    EXPECT_ERROR("is no token of the model; was the cache", data.batch({}));
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

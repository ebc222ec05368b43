// What is saved is what was there, and a save that fails leaves no trace.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "expect_error.h"
#include "io/file.h"
#include "qkv/checkpoint.h"
#include "qkv/ops.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

std::string content(const std::string& path) { return read_file(path, 1 << 20); }

class CheckpointSaveTest : public ::testing::Test {
 protected:
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  testing::TemporaryFolder folder;
  const std::string path = folder.path("x.safetensors");
};

TEST_F(CheckpointSaveTest, RoundTripsEveryDtypeShapeAndName) {
  const std::vector<std::pair<std::string, Tensor>> tensors = {
      {"u8", Tensor::from<std::uint8_t>({1, 2, 255}, {3})},
      {"bool", Tensor::full({1, 2, 1}, 1, {DType::boolean})},
      {"f32", Tensor::from<float>({1.5f, -0.0f, 3e-45f, 4, 5, 6}, {2, 3})},
      {"i64", Tensor::from<std::int64_t>({INT64_MIN, INT64_MAX}, {2})},
      {"i32", Tensor::from<std::int32_t>({-7}, {})},
      {"bf16", Tensor::from<bf16>({bf16(1.0f)}, {1})},
      {"f16", Tensor::from<f16>({f16(1.0f), f16(2.0f), f16(3.0f)}, {3, 1})},
      {"empty", Tensor::zeros({0, 5})},
      {"", Tensor::zeros({1, 1, 1, 1, 1, 1, 1, 1})},
      {"quote\" slash\\ line\n \xc3\xa9", Tensor::full({1}, 9)},
  };
  save_checkpoint(path, tensors, {{"format", "pt"}, {"k\"", "v\xc3\xa9"}});
  const Checkpoint file = Checkpoint::open(path);
  EXPECT_EQ(file.names().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("k\""), "v\xc3\xa9");
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(file.contains(name));
    const Tensor read = file[name];
    EXPECT_EQ(read.shape(), tensor.shape());
    ASSERT_EQ(read.dtype(), tensor.dtype());
    EXPECT_EQ(read.raw(), file[name].raw()) << "aligned, so a view";
    const std::size_t bytes = static_cast<std::size_t>(read.numel()) * size_of(read.dtype());
    EXPECT_EQ(bytes == 0 ? 0 : std::memcmp(read.raw(), tensor.raw(), bytes), 0);
  }
}

TEST_F(CheckpointSaveTest, WritesTheBytesOfTheFormat) {
  save_checkpoint(path, {{"b", Tensor::from<std::uint8_t>({65}, {1})},
                         {"a", Tensor::from<std::int32_t>({0x64636261}, {1, 1})}});
  const std::string bytes = content(path);
  EXPECT_EQ(bytes, testing::safetensors_bytes(
                       R"({"__metadata__":{"format":"pt"},)"
                       R"("a":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}     )",
                       "abcdA"));
  save_checkpoint(path, {}, {});
  EXPECT_EQ(content(path), testing::safetensors_bytes("{}      ", ""));
}

TEST_F(CheckpointSaveTest, WritesWhatAViewShows) {
  std::vector<bf16> patterns(1 << 16);  // every one of them, NaN or not, comes back
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i].bits = std::uint16_t(i);
  const Tensor x = Tensor::from<bf16>(patterns, {256, 256});
  const Tensor small = Tensor::from<std::int64_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor backwards = small.view({2, 3}, std::vector<std::int64_t>{-3, -1}, 5);
  const Tensor repeated = small.view({2, 2}, std::vector<std::int64_t>{0, 1}, 1);
  save_checkpoint(
      path,
      {{"t", transpose(x, 0, 1)}, {"s", slice(small, 1, 1, 3)}, {"b", backwards}, {"r", repeated}});
  const Checkpoint file = Checkpoint::open(path);
  for (std::int64_t i = 0; i < 256; ++i) {
    for (std::int64_t j = 0; j < 256; ++j) {
      ASSERT_EQ(file["t"].data<bf16>()[i * 256 + j].bits, j * 256 + i);
    }
  }
  EXPECT_EQ(file["s"].to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 3, 5, 6}));
  EXPECT_EQ(file["b"].to_vector<std::int64_t>(), (std::vector<std::int64_t>{6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(file["r"].to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 3, 2, 3}));
}

TEST_F(CheckpointSaveTest, MayReplaceTheFileItReads) {
  save_checkpoint(path, {{"a", Tensor::full({1000}, 1)}, {"b", Tensor::full({1000}, 2)}});
  const Checkpoint file = Checkpoint::open(path);
  save_checkpoint(path, {{"b", file["a"]}, {"a", file["b"]}});
  EXPECT_EQ(Checkpoint::open(path)["a"].data<float>()[999], 2);
  EXPECT_EQ(file["a"].data<float>()[999], 1) << "the old file lives while it is mapped";
  EXPECT_EQ(listing(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(CheckpointSaveTest, RefusesWhatCannotBeWritten) {
  save_checkpoint(path, {{"a", Tensor::zeros({1})}});
  const std::string before = content(path);
  const Tensor x = Tensor::zeros({1});
  EXPECT_ERROR("two tensors are called 'a'", save_checkpoint(path, {{"a", x}, {"a", x}}));
  EXPECT_ERROR("tensor 'a' is undefined", save_checkpoint(path, {{"a", Tensor{}}}));
  EXPECT_ERROR("__metadata__", save_checkpoint(path, {{"__metadata__", x}}));
  EXPECT_ERROR("not UTF-8", save_checkpoint(path, {{"\xff", x}}));
  EXPECT_ERROR("not UTF-8", save_checkpoint(path, {{"a", x}}, {{"k", "\xff"}}));
  EXPECT_EQ(content(path), before);
  EXPECT_EQ(listing(), std::vector<std::string>{"x.safetensors"});
}

// What a full disk does, without filling one: writes beyond `bytes` fail.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(CheckpointSaveTest, AFailedWriteLeavesTheOldFile) {
  save_checkpoint(path, {{"a", Tensor::full({10}, 1)}});
  const std::string before = content(path);
  {
    const FileSizeLimit limit(4096);
    EXPECT_ERROR("cannot write '" + path + "': File too large",
                 save_checkpoint(path, {{"a", Tensor::full({10000}, 2)}}));
    EXPECT_ERROR(folder.path("new"),
                 write_file_atomically(folder.path("new"), std::string(5000, 'x')));
  }
  EXPECT_EQ(content(path), before);
  EXPECT_EQ(listing(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(CheckpointSaveTest, NamesThePathItCannotWrite) {
  const std::string nowhere = folder.path("no/such/x.safetensors");
  EXPECT_ERROR("cannot write '" + nowhere + "': No such file or directory",
               save_checkpoint(nowhere, {}));
  EXPECT_ERROR("not a regular file", save_checkpoint(folder.path(), {}));
  EXPECT_ERROR("not a regular file", write_file_atomically("/dev/null", ""));
  std::ofstream(folder.path("file")).close();
  EXPECT_ERROR("Not a directory", save_checkpoint(folder.path("file/x"), {}));
  if (geteuid() != 0) {  // nothing is unwritable to root
    std::filesystem::create_directory(folder.path("closed"));
    ASSERT_EQ(chmod(folder.path("closed").c_str(), 0500), 0);
    EXPECT_ERROR("Permission denied", save_checkpoint(folder.path("closed/x"), {}));
  }
}

TEST_F(CheckpointSaveTest, PassesOverTemporaryFilesOfOthers) {
  for (int i = 0; i < 200; ++i) {
    std::ofstream(folder.path(fmt::format(".qkv-{}-{}.tmp", getpid(), i))) << "theirs";
  }
  write_file_atomically(path, "ours");
  EXPECT_EQ(content(path), "ours");
  EXPECT_EQ(content(folder.path(fmt::format(".qkv-{}-199.tmp", getpid()))), "theirs");
  EXPECT_EQ(listing().size(), 201u);
}

TEST_F(CheckpointSaveTest, WritesPlainFilesWhole) {
  const std::string config = folder.path("config.json");
  write_file_atomically(config, "{}\n");
  EXPECT_EQ(content(config), "{}\n");
  ASSERT_EQ(chmod(config.c_str(), 0640), 0);
  write_file_atomically(config, std::string_view("a\0b", 3));
  EXPECT_EQ(content(config), std::string("a\0b", 3));
  struct stat status {};
  ASSERT_EQ(stat(config.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u) << "the new file may be read by who read the old one";
  std::filesystem::create_symlink("config.json", folder.path("link"));
  write_file_atomically(folder.path("link"), "");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
  EXPECT_EQ(content(config), "");
  EXPECT_THROW(write_file_atomically(folder.path("thrown"),
                                     [](const FileSink&) { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(listing().size(), 2u);
  const std::string longest(255, 'n');  // as long as a name can be
  write_file_atomically(folder.path(longest), "x");
  EXPECT_EQ(content(folder.path(longest)), "x");
}

}  // namespace
}  // namespace qkv

// A checkpoint cut into several files, and the index that says which tensor is where.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "expect_error.h"
#include "qkv/checkpoint.h"
#include "qkv/ops.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

const char* const kIndex = "model.safetensors.index.json";

class CheckpointIndexTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::remove(folder.path(name));
    std::ofstream(folder.path(name), std::ios::binary) << bytes;
  }
  Checkpoint open_index(const std::string& index) const {
    write(kIndex, index);
    return Checkpoint::open(folder.path(kIndex));
  }
  Checkpoint open_map(const std::string& map) const {
    return open_index("{\"weight_map\":" + map + "}");
  }

  void SetUp() override {
    save_checkpoint(folder.path("one.safetensors"),
                    {{"a", Tensor::full({2}, 1)}, {"b", Tensor::full({3}, 2)}},
                    {{"format", "pt"}, {"only", "one"}});
    save_checkpoint(folder.path("two.safetensors"),
                    {{"c", Tensor::full({4}, 3)}, {"extra", Tensor::full({1}, 4)}},
                    {{"format", "np"}, {"second", "two"}});
  }

  testing::TemporaryFolder folder;
  const std::string good = R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})";
};

TEST_F(CheckpointIndexTest, ReadsTensorsOfSeveralFiles) {
  const Checkpoint model =
      open_index("{\"metadata\":{\"total_size\":36},\"weight_map\":" + good + "}");
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(model["b"].to_vector<float>(), (std::vector<float>{2, 2, 2}));
  EXPECT_EQ(model["c"].to_vector<float>(), (std::vector<float>{3, 3, 3, 3}));
  EXPECT_FALSE(model.contains("extra")) << "the index says what the model is";
  EXPECT_ERROR("no tensor 'extra'", model["extra"]);
  EXPECT_EQ(model.files(), (std::vector<std::string>{folder.path("one.safetensors"),
                                                     folder.path("two.safetensors")}));
  EXPECT_EQ(model.metadata(), (std::map<std::string, std::string>{
                                  {"format", "pt"}, {"only", "one"}, {"second", "two"}}));
}

TEST_F(CheckpointIndexTest, AFolderMeansItsModel) {
  EXPECT_ERROR("has no model.safetensors and no model.safetensors.index.json",
               Checkpoint::open(folder.path()));
  open_map(good);
  EXPECT_EQ(Checkpoint::open(folder.path()).names().size(), 3u);
  EXPECT_EQ(Checkpoint::open(folder.path() + "/").names().size(), 3u);
  save_checkpoint(folder.path("model.safetensors"), {{"whole", Tensor::zeros({1})}});
  EXPECT_EQ(Checkpoint::open(folder.path()).names(), std::vector<std::string>{"whole"})
      << "one file comes before an index";
  std::filesystem::remove(folder.path("model.safetensors"));
  std::filesystem::create_symlink("gone", folder.path("model.safetensors"));
  EXPECT_ERROR("No such file", Checkpoint::open(folder.path()));
}

TEST_F(CheckpointIndexTest, FindsFilesBesideARelativeIndex) {
  write(kIndex, "{\"weight_map\":" + good + "}");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::size_t count = Checkpoint::open(kIndex).names().size();
  std::filesystem::current_path(before);
  EXPECT_EQ(count, 3u);
}

TEST_F(CheckpointIndexTest, FollowsLinksOfTheFolder) {  // Hugging Face's cache is made of them
  std::filesystem::create_symlink("one.safetensors", folder.path("linked.safetensors"));
  EXPECT_EQ(open_map(R"({"a":"linked.safetensors"})")["a"].numel(), 2);
}

TEST_F(CheckpointIndexTest, RefusesIndexesThatAreNone) {
  for (const char* index :
       {"", "[]", "{}", "{\"weight_map\":null}", "{\"weight_map\":[]}", "{\"weight_map\":{}}",
        "{\"weight_map\":\"one.safetensors\"}", "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{\"a\":null}}", "{\"weight_map\":{\"a\":[\"one.safetensors\"]}}",
        "{\"weight_map\":{\"a\":{\"a\":\"one.safetensors\"}}}",
        "{\"weight_map\":{\"\xff\":\"one.safetensors\"}}", "{\"weight_map\":{\"a\":"}) {
    SCOPED_TRACE(index);
    EXPECT_ERROR(kIndex, open_index(index));
  }
  EXPECT_ERROR("'weight_map' appears twice",
               open_index("{\"weight_map\":" + good + ",\"weight_map\":" + good + "}"));
}

TEST_F(CheckpointIndexTest, RefusesIndexesThatLie) {
  EXPECT_ERROR("tensor 'z' is not in 'one.safetensors'", open_map(R"({"z":"one.safetensors"})"));
  EXPECT_ERROR("tensor 'a' is not in 'two.safetensors'", open_map(R"({"a":"two.safetensors"})"));
  EXPECT_ERROR("three.safetensors': No such file", open_map(R"({"a":"three.safetensors"})"));
  EXPECT_ERROR("'a' appears twice", open_map(R"({"a":"one.safetensors","a":"one.safetensors"})"));
  save_checkpoint(folder.path("three.safetensors"),
                  {{"a", Tensor::zeros({9})}, {"d", Tensor::zeros({1})}});
  EXPECT_ERROR("tensor 'a' is in two files",
               open_map(R"({"a":"one.safetensors","d":"three.safetensors"})"));
}

TEST_F(CheckpointIndexTest, RefusesFilesOutsideOfItsFolder) {
  std::filesystem::create_directory(folder.path("inner"));
  std::filesystem::copy(folder.path("one.safetensors"), folder.path("inner/one.safetensors"));
  const std::string absolute = folder.path("one.safetensors");
  for (const std::string& name :
       {absolute, std::string("inner/one.safetensors"), std::string("./one.safetensors"),
        std::string("../one.safetensors"), std::string(".."), std::string("."), std::string(""),
        std::string("..\\\\one.safetensors"), std::string("one.safetensors\\u0000")}) {
    SCOPED_TRACE(name);
    EXPECT_ERROR("must be the name of a file beside it", open_map("{\"a\":\"" + name + "\"}"));
  }
}

TEST_F(CheckpointIndexTest, DoesNotFollowLoops) {
  EXPECT_ERROR("a JSON file", open_map(std::string("{\"a\":\"") + kIndex + "\"}"));
  std::filesystem::create_symlink("loop.safetensors", folder.path("loop.safetensors"));
  EXPECT_ERROR("loop.safetensors", open_map(R"({"a":"loop.safetensors"})"));
  std::filesystem::create_directory(folder.path("folder.safetensors"));
  EXPECT_ERROR("not a regular file", open_map(R"({"a":"folder.safetensors"})"));
  ASSERT_EQ(mkfifo(folder.path("pipe.safetensors").c_str(), 0600), 0);
  EXPECT_ERROR("not a regular file", open_map(R"({"a":"pipe.safetensors"})"));
}

TEST_F(CheckpointIndexTest, NamesTheFileThatIsBroken) {
  write("two.safetensors", "broken");
  EXPECT_ERROR("two.safetensors': 6 bytes are too few", open_map(good));
}

// How many of the pages of a tensor are in memory for this process.
std::size_t resident_pages(const Tensor& tensor) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.raw());
  const auto bytes = static_cast<std::uintptr_t>(tensor.numel()) * size_of(tensor.dtype());
  const std::uintptr_t first = begin / page, last = (begin + bytes + page - 1) / page;
  std::vector<std::uint64_t> entries(last - first);
  const std::size_t size = entries.size() * sizeof entries[0];
  const int map = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const ssize_t got =
      ::pread(map, entries.data(), size, static_cast<off_t>(first * sizeof entries[0]));
  ::close(map);
  EXPECT_EQ(got, static_cast<ssize_t>(size));
  return static_cast<std::size_t>(
      std::count_if(entries.begin(), entries.end(), [](auto entry) { return entry >> 63 != 0; }));
}

TEST_F(CheckpointIndexTest, DropsThePagesOfATensorAndNothingElse) {
  const std::int64_t n = 1 << 20;
  save_checkpoint(folder.path("large.safetensors"),
                  {{"a", Tensor::full({n}, 1)}, {"b", Tensor::full({n}, 2)}});
  const Checkpoint file = Checkpoint::open(folder.path("large.safetensors"));
  const Tensor a = file["a"], b = file["b"];
  const auto total = [](const Tensor& x) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) sum += double{x.data<float>()[i]};
    return sum;
  };
  EXPECT_EQ(total(a), n);
  EXPECT_EQ(total(b), 2 * n);
  const auto many = static_cast<std::size_t>(n * 4 / sysconf(_SC_PAGESIZE) / 2);
  ASSERT_GE(resident_pages(a), many);
  ASSERT_GE(resident_pages(b), many);
  drop_pages(a);
  EXPECT_LE(resident_pages(a), 2u) << "those it shares with others stay";
  EXPECT_GE(resident_pages(b), many);
  EXPECT_EQ(total(a), n) << "the file has them still";
  drop_pages(slice(b, 0, 0, n / 2));
  EXPECT_LE(resident_pages(slice(b, 0, 0, n / 2)), 2u);
  EXPECT_GE(resident_pages(slice(b, 0, n / 2, n)), many / 2);
  EXPECT_EQ(total(b), 2 * n);
}

TEST_F(CheckpointIndexTest, LeavesOtherMemoryAlone) {  // dropped, it would read as zeros
  const Tensor mine = Tensor::full({1 << 20}, 3);
  drop_pages(mine);
  drop_pages(Tensor());
  drop_pages(Tensor::zeros({0}));
  EXPECT_EQ(mine.data<float>()[1 << 19], 3);
  // Static memory lies below mapped files, the stack above them.
  constexpr std::size_t kSize = 1 << 17;
  static std::uint8_t below[kSize];
  std::uint8_t above[kSize];
  for (std::uint8_t* memory : {below, above}) {
    std::fill_n(memory, kSize, std::uint8_t{7});
    drop_pages(Tensor::wrap(memory, {kSize}, DType::u8));
    EXPECT_EQ(std::count(memory, memory + kSize, std::uint8_t{7}), std::ptrdiff_t{kSize});
  }
}

}  // namespace
}  // namespace qkv

// Thousands of damaged files: each is opened or refused with an Error, and what is opened holds
// together. tests/fuzz looks further where there is time.
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>

#include "expect_error.h"
#include "io/json.h"
#include "io/safetensors_header.h"
#include "io/shard_index.h"
#include "qkv/checkpoint.h"
#include "support/mutate.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

const std::string kHeader = R"({"__metadata__":{"format":"pt","note":"\u00e9"},)"
                            R"("a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                            R"("empty":{"dtype":"F16","shape":[0,5],"data_offsets":[24,24]},)"
                            R"("ids":{"data_offsets":[24,40],"shape":[2],"dtype":"I64"},)"
                            R"("scalar":{"dtype":"I32","shape":[],"data_offsets":[40,44]},)"
                            R"("mask":{"dtype":"BOOL","shape":[4],"data_offsets":[44,48]},)"
                            R"("f4":{"dtype":"F4","shape":[4],"data_offsets":[48,50]}} )";
const std::string kData = std::string(44, 'x') + std::string("\0\1\1\0", 4) + "zz";

const std::string kIndexText =
    R"({"metadata":{"total_size":7},"weight_map":{"a":"one.safetensors","b":"two.safetensors",)"
    R"("c":"one.safetensors"}})";

// In a block of exactly its size, so that AddressSanitizer sees a read beyond it.
struct ExactBytes {
  std::unique_ptr<char[]> data;
  std::size_t size;

  explicit ExactBytes(const std::string& bytes) : data(new char[bytes.size()]), size(bytes.size()) {
    bytes.copy(data.get(), size);
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(data.get(), size)); }
  std::string_view text() const { return {data.get(), size}; }
};

struct Outcomes {
  int opened = 0, refused = 0;

  template <class F>
  void count(F&& f) {
    try {
      f();
      ++opened;
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 600u);
      ++refused;
    }
  }
};

void expect_tiles(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  ASSERT_LE(header.data_begin, file_bytes);
  std::uint64_t bytes = 0;
  for (const auto& [name, entry] : header.tensors) {
    ASSERT_LE(entry.begin, entry.end);
    ASSERT_LE(entry.end, file_bytes - header.data_begin);
    bytes += entry.end - entry.begin;
  }
  EXPECT_EQ(bytes, file_bytes - header.data_begin);
}

// Damage to the header alone, with its length set right, gets past the first checks.
std::string damaged_file(testing::Mutator& mutate) {
  return mutate.below(2) == 0 ? mutate(testing::safetensors_bytes(kHeader, kData))
                              : testing::safetensors_bytes(mutate(kHeader), kData);
}

TEST(CheckpointMutation, HeadersAreReadOrRefused) {
  testing::Mutator mutate(1);
  Outcomes outcomes;
  for (int i = 0; i < 20'000; ++i) {
    const ExactBytes file(damaged_file(mutate));
    outcomes.count([&] { expect_tiles(read_safetensors_header(file.bytes(), "f"), file.size); });
    ASSERT_FALSE(::testing::Test::HasFailure()) << file.text();
  }
  EXPECT_GT(outcomes.opened, 500) << "a test where all are refused tests little";
  EXPECT_GT(outcomes.refused, 10'000);
}

TEST(CheckpointMutation, FilesAreOpenedAndReadOrRefused) {
  const testing::TemporaryFolder folder;
  testing::Mutator mutate(2);
  Outcomes outcomes;
  for (int i = 0; i < 2'000; ++i) {
    const std::string path = folder.path(std::to_string(i) + ".safetensors");
    std::ofstream(path, std::ios::binary) << damaged_file(mutate);
    outcomes.count([&] {
      const Checkpoint file = Checkpoint::open(path);
      std::size_t touched = 0;
      for (const std::string& name : file.names()) {
        if (!file.info(name).dtype) continue;
        const Tensor tensor = file[name];
        const auto* bytes = static_cast<const volatile unsigned char*>(tensor.raw());
        for (std::size_t b = 0; b < file.info(name).bytes; ++b) touched += bytes[b];
        drop_pages(tensor);
      }
      EXPECT_LT(touched, 1u << 20);
    });
    std::filesystem::remove(path);
  }
  EXPECT_GT(outcomes.opened, 50);
  EXPECT_GT(outcomes.refused, 1000);
}

TEST(CheckpointMutation, IndexesAreReadOrRefused) {
  testing::Mutator mutate(3);
  Outcomes indexes, configs;
  for (int i = 0; i < 20'000; ++i) {
    const ExactBytes text(mutate(kIndexText));
    indexes.count([&] {
      for (const auto& [name, file] : parse_shard_index(text.text(), "i")) {
        EXPECT_EQ(file.find('/'), std::string::npos);
        EXPECT_NE(file, "..");
      }
    });
    configs.count([&] { EXPECT_LE(Config::parse(text.text(), "c").keys().size(), 10u); });
  }
  EXPECT_GT(indexes.opened, 1000);
  EXPECT_GT(indexes.refused, 5'000);
  EXPECT_GE(configs.opened, indexes.opened);
}

}  // namespace
}  // namespace qkv

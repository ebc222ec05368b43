#include "qkv/checkpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "expect_error.h"
#include "qkv/ops.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

using testing::bytes_of;
using testing::safetensors_bytes;

class CheckpointTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "file.safetensors") const {
    return folder_.path(name);
  }

  // Replaces the file: a mapped one must not change under its readers.
  std::string write(const std::string& bytes) const {
    std::filesystem::remove(path());
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }

  Checkpoint open(const std::string& header, const std::string& data = {}) const {
    return Checkpoint::open(write(safetensors_bytes(header, data)));
  }

  // One tensor "x" of four bytes, its entry given.
  Checkpoint open_entry(const std::string& entry) const {
    return open("{\"x\":" + entry + "}", std::string(4, '\0'));
  }

 private:
  testing::TemporaryFolder folder_;
};

const char* const kGoodHeader =
    R"({"__metadata__":{"format":"pt","note":"\u00e9"},)"
    R"("a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("empty":{"dtype":"F16","shape":[0,5],"data_offsets":[24,24]},)"
    R"("ids":{"data_offsets":[24,40],"shape":[2],"dtype":"I64"},)"
    R"("scalar":{"dtype":"I32","shape":[],"data_offsets":[40,44]}}     )";
const std::string kGoodData = bytes_of<float>({1, 2, 3, 4, 5, 6}) +
                              bytes_of<std::int64_t>({-1, 1LL << 40}) +
                              bytes_of<std::int32_t>({77});

TEST_F(CheckpointTest, ReadsAGoodFile) {
  const Checkpoint file = open(kGoodHeader, kGoodData);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a.weight", "empty", "ids", "scalar"}));
  EXPECT_TRUE(file.contains("ids"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "\xc3\xa9");
  EXPECT_EQ(file["a.weight"].shape(), (Shape{2, 3}));
  EXPECT_EQ(file["a.weight"].to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(file["ids"].to_vector<std::int64_t>(), (std::vector<std::int64_t>{-1, 1LL << 40}));
  EXPECT_EQ(file["scalar"].to_vector<std::int32_t>(), std::vector<std::int32_t>{77});
  EXPECT_EQ(file["empty"].shape(), (Shape{0, 5}));
  EXPECT_ERROR("no tensor 'b'", file["b"]);
}

TEST_F(CheckpointTest, ReadsFilesWithoutTensors) {
  EXPECT_TRUE(open("{}").names().empty());
  EXPECT_EQ(open(R"({"__metadata__":{"a":"b"}})").metadata().size(), 1u);
}

TEST_F(CheckpointTest, KeepsTheMappingWhileATensorLives) {
  std::string header = kGoodHeader;
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligned, so that tensors are views
  Tensor x;
  {
    const Checkpoint file = open(header, kGoodData);
    EXPECT_EQ(file["a.weight"].raw(), file["a.weight"].raw());
    x = slice(file["a.weight"], 0, 1, 2);
  }
  std::filesystem::remove(path());
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{4, 5, 6}));
}

TEST_F(CheckpointTest, MapsAlignedTensorsAndCopiesUnalignedOnes) {
  const std::string data =
      bytes_of<char>({'!'}) + bytes_of<float>({1.5f, -2}) + bytes_of<std::uint16_t>({0x3f80});
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const Checkpoint file = open(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                 R"("f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
                                 R"("h":{"dtype":"BF16","shape":[1],"data_offsets":[9,11]}})" +
                                     std::string(padding, ' '),
                                 data);
    const Tensor f = file["f"];
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(f.raw()) % alignof(float), 0u);
    EXPECT_EQ(f.to_vector<float>(), (std::vector<float>{1.5f, -2}));
    EXPECT_EQ(float(file["h"].to_vector<bf16>()[0]), 1.0f);
    EXPECT_EQ(file["b"].to_vector<std::uint8_t>()[0], '!');
    EXPECT_EQ(file["b"].raw(), file["b"].raw()) << "a view, never a copy";
  }
}

TEST_F(CheckpointTest, OpensFilesWithDtypesItDoesNotHave) {
  const Checkpoint file = open(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                               R"("x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                               std::string(12, '\0'));
  EXPECT_EQ(file["x"].numel(), 1);
  EXPECT_ERROR("tensor 'd' is F64", file["d"]);
  EXPECT_EQ(file.info("x").dtype, DType::f32);
  EXPECT_FALSE(file.info("d").dtype.has_value());
}

TEST_F(CheckpointTest, ReadsOnlyZeroAndOneAsBoolean) {
  const char* header = R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  EXPECT_EQ(open(header, std::string("\0\1\1", 3))["m"].to_vector<bool>(),
            (std::vector<bool>{false, true, true}));
  const Checkpoint bad = open(header, std::string("\0\2\1", 3));
  EXPECT_ERROR("bytes other than 0 and 1", bad["m"]);
}

TEST_F(CheckpointTest, NamesThePathWhenItCannotRead) {
  EXPECT_ERROR(path("absent"), Checkpoint::open(path("absent")));
  EXPECT_ERROR("No such file", Checkpoint::open(path("absent")));
  EXPECT_ERROR("not a regular file", Checkpoint::open("/dev/null"));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_ERROR("not a regular file", Checkpoint::open(path("pipe")));
  EXPECT_ERROR("no file", Checkpoint{}.names());
}

TEST_F(CheckpointTest, RefusesEveryTruncation) {
  const std::string whole = safetensors_bytes(kGoodHeader, kGoodData);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_ERROR(path(), Checkpoint::open(write(whole.substr(0, size))));
  }
  EXPECT_ERROR("belong to none", Checkpoint::open(write(whole + "!")));
}

TEST_F(CheckpointTest, SurvivesEveryChangedByte) {
  const std::string whole = safetensors_bytes(kGoodHeader, kGoodData);
  for (std::size_t at = 0; at < whole.size() - kGoodData.size(); ++at) {
    for (const char change : {'\x00', '\xff', '0', '9', '-', '"', '{', ']', ','}) {
      std::string bytes = whole;
      bytes[at] = change;
      try {  // a letter of a name may change; then every tensor must still be readable
        const Checkpoint file = Checkpoint::open(write(bytes));
        for (const std::string& name : file.names()) file[name];
      } catch (const Error&) {
      }
    }
  }
}

TEST_F(CheckpointTest, RefusesHeaderLengthsThatCannotBe) {
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'001}, ~std::uint64_t{0}, ~std::uint64_t{0} - 7,
        std::uint64_t{1} << 63}) {
    EXPECT_ERROR("does not fit", Checkpoint::open(write(bytes_of<std::uint64_t>({length}) + "{}")));
  }
  EXPECT_ERROR("too few", Checkpoint::open(write("")));
  EXPECT_ERROR("Git LFS pointer", Checkpoint::open(write("version https://git-lfs.github.com/")));
  EXPECT_ERROR("a PyTorch file", Checkpoint::open(write("PK\x03\x04\x0a\x0b\x0c\x0d and so on")));
  EXPECT_ERROR("does not begin", open(""));
}

TEST_F(CheckpointTest, RefusesWhatIsNotAHeader) {
  for (const char* header :
       {" {}", "\xef\xbb\xbf{}", "[]", "7", "null", "{", "{}x", "{} {}", "{\"a\"}", "{\"a\":}",
        "{\"a\":1}", "{\"a\":null}", "{\"a\":\"b\"}", "{\"a\":[]}", "{\"a\":{}}", "{'a':1}",
        "{\"\xff\":{}}", "{\"a\":{\"b\":{}}}"}) {
    SCOPED_TRACE(header);
    EXPECT_ERROR(path(), open(header));
  }
  for (const char* metadata : {"1", "[]", "null", "{\"a\":1}", "{\"a\":{}}", "{\"a\":null}",
                               "{\"a\":\"b\",\"a\":\"c\"}"}) {
    SCOPED_TRACE(metadata);
    EXPECT_ERROR("__metadata__", open(std::string("{\"__metadata__\":") + metadata + "}"));
  }
  EXPECT_ERROR("twice", open(R"({"__metadata__":{},"__metadata__":{}})"));
}

TEST_F(CheckpointTest, RefusesEntriesThatDoNotDescribeTheirBytes) {
  EXPECT_EQ(open_entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})")["x"].numel(), 1);
  for (
      const char* entry : {
          R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[0],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})",
          R"({"dtype":"U8","shape":[3],"data_offsets":[0,3]})",  // leaves a byte
          R"({"dtype":"U8","shape":[3],"data_offsets":[1,4]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[0]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[[0,4]]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[-0,4]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[0,4.0]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":"0,4"})",
          R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[1e0],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[true],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]})",
          // 2^62 * 4 and 2^33 * 2^33 would wrap around to small numbers
          R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})",
          R"({"dtype":"F32","shape":[8589934592,8589934592],"data_offsets":[0,0]})",
          R"({"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})",
          R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})",
          // sizes of dtypes that only the format has
          R"({"dtype":"F64","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,4]})",
          R"({"dtype":"F4","shape":[9],"data_offsets":[0,4]})",
          R"({"dtype":"F6_E2M3","shape":[6],"data_offsets":[0,4]})",
          R"({"dtype":"F64","shape":[576460752303423487],"data_offsets":[0,4]})",
          R"({"dtype":"F4","shape":[576460752303423487],"data_offsets":[0,4]})",
          R"({"dtype":"","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F32 ","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F32\u0000","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F32F32F32F32F32F32","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":3,"shape":[1],"data_offsets":[0,4]})",
          R"({"shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F32","data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[1]})",
          R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1})",
      }) {
    SCOPED_TRACE(entry);
    EXPECT_ERROR(path(), open_entry(entry));
  }
}

TEST_F(CheckpointTest, TellsAboutDtypesWithoutTouchingBytes) {
  struct {
    const char* dtype;
    std::int64_t elements;
    std::size_t bytes;
  } const cases[] = {{"F4", 8, 4},   {"F6_E3M2", 4, 3}, {"F8_E5M2", 3, 3}, {"I16", 1, 2},
                     {"U16", 5, 10}, {"F64", 2, 16},    {"C64", 1, 8},     {"FUTURE_7", 9, 2}};
  for (const auto& [dtype, elements, bytes] : cases) {
    SCOPED_TRACE(dtype);
    const Checkpoint file =
        open(fmt::format(R"({{"x":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", dtype,
                         elements, bytes),
             std::string(bytes, 'x'));
    EXPECT_EQ(file.info("x").stored_dtype, dtype);
    EXPECT_EQ(file.info("x").bytes, bytes);
    EXPECT_EQ(file.info("x").shape, Shape{elements});
    EXPECT_ERROR("expected F32", file["x"]);
    EXPECT_ERROR("no tensor 'y'", file.info("y"));
  }
}

TEST_F(CheckpointTest, RefusesOverlapsAndDuplicates) {
  const auto two = [&](const char* first, const char* b, const char* second) {
    return open(std::string(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)") + first + "},\"" +
                    b + R"(":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}",
                "1234");
  };
  EXPECT_EQ(two("[2,4]", "b", "[0,2]")["b"].to_vector<std::uint8_t>()[0], '1');
  EXPECT_ERROR("overlap", two("[0,2]", "b", "[1,3]"));
  EXPECT_ERROR("overlap", two("[0,2]", "b", "[0,2]"));
  EXPECT_ERROR("leaves a hole at byte 0", two("[2,4]", "b", "[1,3]"));
  EXPECT_ERROR("appears twice", two("[0,2]", "a", "[2,4]"));
  EXPECT_ERROR("appears twice", two("[0,2]", "\\u0061", "[2,4]"));
}

TEST_F(CheckpointTest, RefusesRangesThatOnlyAddUp) {
  // One runs backwards, from 8 to 4, so that the last ends where the file does.
  EXPECT_ERROR("do not lie within the 4 bytes",
               open(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]},)"
                    R"("c":{"dtype":"FUTURE","shape":[],"data_offsets":[8,4]}})",
                    "1234"));
}

TEST_F(CheckpointTest, StopsAtDeepNesting) {
  const std::string deep(10'000'000, '[');
  EXPECT_ERROR("an array where none belongs", open("{\"a\":" + deep));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_ERROR(path(), open(objects));
  EXPECT_ERROR(path(), open("{\"__metadata__\":" + objects));
}

TEST_F(CheckpointTest, SaysLittleAboutLongNames) {
  const std::string name(1'000'000, 'n');
  const Checkpoint file = open("{}");
  EXPECT_LT(testing::error_of([&] { file[name]; }).size(), 400u);
  EXPECT_LT(testing::error_of([&] { open("{\"" + name + "\":1}"); }).size(), 400u);
  EXPECT_LT(testing::error_of([&] { open("{\"" + name); }).size(), 400u);
}

}  // namespace
}  // namespace qkv

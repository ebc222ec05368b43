// The checksums of kept files: those of everybody else's XXH64.
#include "io/checksum.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>

#include "expect_error.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

// What the reference implementation, xxhash 0.8, gives.
TEST(Checksum, IsXxh64) {
  EXPECT_EQ(checksum_text(checksum_of("")), "ef46db3751d8e999");
  EXPECT_EQ(checksum_text(checksum_of("a")), "d24ec4f1a98c6e5b");
  EXPECT_EQ(checksum_text(checksum_of("abc")), "44bc2cf5ad770999");
  EXPECT_EQ(checksum_of("Call me Ishmael. Some years ago--never mind how long precisely-"),
            0x02A2E85470D6FD96U);
  EXPECT_EQ(checksum_of("abcdefghijklmnopqrstuvwxyz0123456789"), 0x64F23ECF1609B766U);
  EXPECT_EQ(checksum_of("1234567890123456789012345678901234567890"
                        "1234567890123456789012345678901234567890"),
            0xE04A477F19EE145DU);
}

// Every way through the end of the algorithm: i * 7 mod 256, so many bytes of it.
TEST(Checksum, IsXxh64AtEveryLengthOfTheEnd) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i * 7 % 256);
  const std::pair<std::size_t, std::uint64_t> expected[] = {
      {1, 0xE934A84ADB052768},  {4, 0xAE5ACDC00A55AC41},   {7, 0xD734A6B26F3DA63E},
      {8, 0x87116B3365B924EB},  {31, 0x0F187C62B1E722B7},  {32, 0x91B0CB0931A8C629},
      {33, 0x931B043CF8D65B94}, {63, 0x219110BF13E2FA26},  {64, 0xBF3052E3445775D0},
      {65, 0xED65E3510DF3611D}, {100, 0x8E2272C08247D5DB}, {1000, 0x25275608A9CFC168}};
  for (const auto& [size, checksum] : expected) {
    EXPECT_EQ(checksum_of(std::string_view(bytes).substr(0, size)), checksum) << size;
  }
}

TEST(Checksum, DoesNotDependOnHowBytesCome) {
  std::string bytes;
  for (int i = 0; i < 200; ++i) bytes += static_cast<char>(i * 11 % 251);
  const auto part = [&](std::size_t begin, std::size_t end) {
    return std::as_bytes(std::span(bytes).subspan(begin, end - begin));
  };
  for (std::size_t first = 0; first <= bytes.size(); ++first) {
    for (std::size_t second = first; second <= bytes.size(); second += 13) {
      Checksum sum;
      sum.add(part(0, first));
      sum.add(part(first, second));
      sum.add(part(second, bytes.size()));
      ASSERT_EQ(sum.value(), checksum_of(bytes)) << first << " " << second;
    }
  }
}

TEST(Checksum, OfAFileIsThatOfItsBytes) {
  const testing::TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 700'000; ++i) bytes += static_cast<char>(i * 31 >> 3);
  std::ofstream(folder.path("x"), std::ios::binary) << bytes;
  EXPECT_EQ(checksum_of_file(folder.path("x")), checksum_of(bytes));
  EXPECT_ERROR("none", checksum_of_file(folder.path("none")));
  EXPECT_ERROR("not a regular file", checksum_of_file(folder.path()));
}

}  // namespace
}  // namespace qkv

// Checksums of what is kept on a disk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace qkv {

// XXH64 with seed 0, as `xxh64sum` prints it. It finds damage; it is no protection against somebody
// who changes a file on purpose.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all that was added so far

 private:
  static constexpr std::size_t kStripe = 32;

  void add_stripe(const std::byte* stripe);

  std::array<std::uint64_t, 4> lanes_ = first_lanes();
  std::array<std::byte, kStripe> rest_{};  // less than a stripe
  std::uint64_t total_ = 0;

  static std::array<std::uint64_t, 4> first_lanes();
};

std::uint64_t checksum_of(std::string_view bytes);
// Reads the file from its beginning to its end. Error where it cannot be read.
std::uint64_t checksum_of_file(const std::string& path);
// Sixteen hexadecimal digits.
std::string checksum_text(std::uint64_t checksum);

}  // namespace qkv

#include "io/checksum.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "io/descriptor.h"

namespace qkv {
namespace {

// Of the specification of xxHash (Yann Collet, BSD licence).
constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                        kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63,
                        kPrime5 = 0x27D4EB2F165667C5;
static_assert(std::endian::native == std::endian::little);

std::uint64_t mixed_in(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

template <class Word>
std::uint64_t word_at(const std::byte* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

}  // namespace

std::array<std::uint64_t, 4> Checksum::first_lanes() {
  return {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
}

void Checksum::add_stripe(const std::byte* stripe) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i] = mixed_in(lanes_[i], word_at<std::uint64_t>(stripe + 8 * i));
  }
}

void Checksum::add(std::span<const std::byte> bytes) {
  const std::size_t held = total_ % kStripe;
  total_ += bytes.size();
  if (held > 0) {
    const std::size_t count = std::min(kStripe - held, bytes.size());
    std::ranges::copy(bytes.first(count), rest_.data() + held);
    bytes = bytes.subspan(count);
    if (held + count < kStripe) return;
    add_stripe(rest_.data());
  }
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) add_stripe(bytes.data());
  std::ranges::copy(bytes, rest_.data());
}

std::uint64_t Checksum::value() const {
  std::uint64_t sum = kPrime5;
  if (total_ >= kStripe) {
    sum = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
          std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) sum = (sum ^ mixed_in(0, lane)) * kPrime1 + kPrime4;
  }
  sum += total_;
  const std::byte* at = rest_.data();
  const std::byte* end = at + total_ % kStripe;
  for (; end - at >= 8; at += 8) {
    sum = std::rotl(sum ^ mixed_in(0, word_at<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    sum = std::rotl(sum ^ word_at<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) sum = std::rotl(sum ^ word_at<std::uint8_t>(at) * kPrime5, 11) * kPrime1;
  sum = (sum ^ sum >> 33) * kPrime2;
  sum = (sum ^ sum >> 29) * kPrime3;
  return sum ^ sum >> 32;
}

std::uint64_t checksum_of(std::string_view bytes) {
  Checksum sum;
  sum.add(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return sum.value();
}

std::uint64_t checksum_of_file(const std::string& path) {
  constexpr std::size_t kBuffer = std::size_t{1} << 18;  // stays in the core's own cache
  // O_NONBLOCK: a named pipe is refused below instead of waiting for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number < 0) fail_with_errno("cannot open", path);
  struct stat status {};
  if (::fstat(file.number, &status) != 0) fail_with_errno("cannot read", path);
  check(S_ISREG(status.st_mode), "cannot read '{}': not a regular file", path);
  std::vector<std::byte> buffer(kBuffer);
  Checksum sum;
  while (true) {
    const ssize_t got = ::read(file.number, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno("cannot read", path);
    if (got == 0) return sum.value();
    sum.add(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

std::string checksum_text(std::uint64_t checksum) { return fmt::format("{:016x}", checksum); }

}  // namespace qkv

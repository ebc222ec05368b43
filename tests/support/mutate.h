// Damages bytes as an attacker or a bad disk would, the same way on every run.
#pragma once

#include <cstdint>
#include <string>

namespace qkv::testing {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : seed_(seed) {}

  // One to four changes: bits flipped, bytes replaced, tokens of JSON and large numbers put in,
  // ranges removed or repeated, the end cut off.
  std::string operator()(std::string bytes);

  std::uint32_t below(std::uint64_t bound);  // uniform in [0, bound); 0 for a bound of 0

 private:
  void change(std::string& bytes);

  std::uint64_t seed_;
  std::uint32_t drawn_ = 0;
};

}  // namespace qkv::testing

#include "support/mutate.h"

#include <iterator>

#include "qkv/random.h"

namespace qkv::testing {
namespace {

const char* const kTokens[] = {"{",
                               "}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "\"",
                               "\\",
                               "0",
                               "-1",
                               "1e9",
                               "4",
                               "null",
                               "true",
                               "\"F32\"",
                               "\"U8\"",
                               "0.5",
                               "\xff",
                               "\xc3",
                               "\\u0000",
                               "[[[[",
                               "{\"a\":",
                               "18446744073709551615",
                               "4611686018427387904",
                               "9223372036854775808",
                               "\"__metadata__\":{},",
                               "\"shape\":[],",
                               "\"data_offsets\":[0,4],",
                               "../",
                               "\"weight_map\":"};

}  // namespace

std::uint32_t Mutator::below(std::uint64_t bound) {
  const std::uint32_t word = philox({drawn_++, 0, 0, 0}, seed_)[0];
  return bound == 0 ? 0 : static_cast<std::uint32_t>(word % bound);
}

void Mutator::change(std::string& bytes) {
  const std::size_t at = below(bytes.size());
  const std::size_t length = 1 + below(below(2) == 0 ? 4 : 40);
  if (bytes.empty()) {
    bytes += kTokens[below(std::size(kTokens))];
    return;
  }
  switch (below(8)) {
    case 0:
    case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
    case 2: bytes[at] = static_cast<char>(below(256)); break;
    case 3: bytes.insert(at, kTokens[below(std::size(kTokens))]); break;
    case 4: bytes.replace(at, length, kTokens[below(std::size(kTokens))]); break;
    case 5: bytes.erase(at, length); break;
    case 6: bytes.insert(below(bytes.size()), bytes.substr(at, length)); break;
    default:
      if (below(4) == 0) bytes.resize(at);
  }
}

std::string Mutator::operator()(std::string bytes) {
  for (std::uint32_t left = 1 + below(4); left > 0; --left) change(bytes);
  return bytes;
}

}  // namespace qkv::testing

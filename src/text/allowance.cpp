#include "text/allowance.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace qkv::text {
namespace {

std::size_t steps_for(std::size_t bytes) {
  return Allowance::kLeastSteps + Allowance::kStepsPerByte * bytes;
}

// Symbols of a word are counted in std::int32_t.
std::size_t bytes_for(std::size_t bytes) {
  return std::min<std::size_t>(Allowance::kLeastBytes + Allowance::kBytesPerByte * bytes,
                               std::numeric_limits<std::int32_t>::max());
}

}  // namespace

Allowance::Allowance(std::size_t bytes)
    : given_(bytes), steps_(steps_for(bytes)), bytes_(bytes_for(bytes)) {}

void check_decoded(std::size_t bytes, std::size_t ids, const std::string& where) {
  constexpr std::size_t kBytesPerId = 4096, kLeastBytes = std::size_t{64} << 20;
  check(bytes <= kLeastBytes + kBytesPerId * ids,
        "{}: {} ids stand for a text of more than {} bytes", where, ids,
        kLeastBytes + kBytesPerId * ids);
}

void Allowance::refuse_steps(const std::string& where) const {
  fail("{}: more than {} steps of work on a text of {} bytes, which no tokenizer needs", where,
       steps_for(given_), given_);
}

void Allowance::refuse_bytes(const std::string& where) const {
  fail("{}: a text of {} bytes becomes more than {}, which no tokenizer needs", where, given_,
       bytes_for(given_));
}

}  // namespace qkv::text

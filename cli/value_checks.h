// What CLI11 lets pass as a value, and we do not.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace qkv::cli {

// What a type is ("INT:INT in [1 - 1024]", "TEXT:{f32,bf16}", "DIR"), as CLI11 describes it.
struct ValueRule {
  enum class Kind { text, path, whole_number, natural_number, number };
  Kind kind = Kind::text;
  std::string least, most;           // "" where there is no bound
  std::vector<std::string> choices;  // when only these are accepted
};
ValueRule value_rule(const std::string& type);

// The value as it is used: numbers in the form that every reader takes for the same. CLI11 reads
// "010" as 8, "-1" as 18446744073709551615 where no sign belongs, "" as 0, and compares nan with
// bounds in vain. Throws CLI::ValidationError, which says what was expected.
std::string checked_value(const ValueRule& rule, const std::string& value);

}  // namespace qkv::cli

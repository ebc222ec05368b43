// What a request line asks for: "/api/rows?id=1&map=cross" becomes a path and its parameters.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qkv::cli {

struct HttpTarget {
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;
};

// Percent escapes are decoded, in the query '+' is a space. Nothing: it is no path, or an escape is
// cut short.
std::optional<HttpTarget> parse_target(std::string_view target);

}  // namespace qkv::cli

#include "http/target.h"

#include <algorithm>

namespace qkv::cli {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> decoded(std::string_view text, bool plus_is_space) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_space) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (i + 2 >= text.size()) return {};
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return {};
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

}  // namespace

std::optional<HttpTarget> parse_target(std::string_view target) {
  if (!target.starts_with('/')) return {};
  const std::size_t question = target.find('?');
  const std::optional<std::string> path = decoded(target.substr(0, question), false);
  if (!path) return {};
  HttpTarget parsed{.path = *path, .query = {}};
  if (question == std::string_view::npos) return parsed;
  std::string_view rest = target.substr(question + 1);
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (one.empty()) continue;
    const std::size_t equals = one.find('=');
    const auto name = decoded(one.substr(0, equals), true);
    const auto value = decoded(equals == one.npos ? "" : one.substr(equals + 1), true);
    if (!name || !value) return {};
    parsed.query.emplace_back(*name, *value);
  }
  return parsed;
}

}  // namespace qkv::cli

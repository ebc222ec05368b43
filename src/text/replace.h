// Every place of a text that holds one string, with another instead.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "text/find.h"

namespace qkv::text {

// In one pass, into a text of its own: in place, each replacement would move what follows it.
template <class Char>
void replace_all(std::basic_string<Char>& text,
                 std::type_identity_t<std::basic_string_view<Char>> old,
                 std::type_identity_t<std::basic_string_view<Char>> replacement) {
  const auto find = [&](std::size_t at) {
    if constexpr (std::is_same_v<Char, char>) {
      return find_string(text, old, at);
    } else {
      return text.find(old, at);
    }
  };
  std::size_t found = old.empty() ? text.npos : find(0);
  if (found == text.npos) return;
  std::basic_string<Char> replaced;
  std::size_t at = 0;
  for (; found != text.npos; found = find(at)) {
    replaced.append(text, at, found - at).append(replacement);
    at = found + old.size();
  }
  text = replaced.append(text, at);
}

}  // namespace qkv::text

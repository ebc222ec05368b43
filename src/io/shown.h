// Text of files and arguments, fit for a terminal or a log.
#pragma once

#include <string>
#include <string_view>

namespace qkv {

// A name in a message: one line, at most 120 bytes, nothing that a terminal would obey.
std::string shown_name(std::string_view name);

// The same for text of any length, whose newlines and tabs stay: control characters (C0, C1, DEL),
// what turns the direction of writing (bidi embeddings, overrides, isolates) and bytes that are no
// UTF-8 become '?', one for each byte.
std::string shown_text(std::string_view text);

}  // namespace qkv

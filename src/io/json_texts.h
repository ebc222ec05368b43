// A JSON file that is a list of texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qkv {

// Throws Error unless it is one list with nothing but texts in it; `name` stands for the file.
std::vector<std::string> parse_json_texts(std::string_view text, const std::string& name);

}  // namespace qkv

// JSON from strangers as the tree of the library, for folders that write JSON themselves. io/json.h
// is what reads a config.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace qkv {

// Throws Error unless the text is one JSON value of at most 16 MiB, 64 levels and a million values,
// in which no object has a key twice. `name` stands for the text in messages.
nlohmann::json strict_json(std::string_view text, const std::string& name);

}  // namespace qkv

// Names and texts out of files, fit for a message.
#pragma once

#include <string>
#include <string_view>

namespace qkv {

// Short and without control characters: what a file says must not take over a terminal or fill a
// log.
std::string shown_name(std::string_view name);

}  // namespace qkv

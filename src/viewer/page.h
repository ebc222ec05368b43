// The page, complete with its data.
#pragma once

#include <string>

namespace qkv::viewer {

std::string look_page(const std::string& title, const std::string& json);

}  // namespace qkv::viewer

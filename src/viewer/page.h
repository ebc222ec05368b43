// The two pages, each complete with its data.
#pragma once

#include <string>

namespace qkv::viewer {

std::string look_page(const std::string& title, const std::string& json);
std::string runs_page(const std::string& json);

}  // namespace qkv::viewer

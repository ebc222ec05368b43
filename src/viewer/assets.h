// The files of src/viewer/assets, as the build put them into the library.
#pragma once

#include <string_view>

namespace qkv::viewer {

std::string_view asset(std::string_view name);

}  // namespace qkv::viewer

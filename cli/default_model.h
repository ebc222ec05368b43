// The translator that comes with qkv: what commands use when no model is named.
#pragma once

#include <string>

namespace qkv::cli {

// Its folder: QKV_MODEL, or where it was installed with this program, or the source tree this
// program was built from. Error names the places that were looked at.
std::string default_model();

}  // namespace qkv::cli

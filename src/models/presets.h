// Configs of well-known models, for benchmarks that need no files.
#pragma once

#include <string>

namespace qkv {

// The config.json of a preset; empty when there is no preset of this name.
std::string preset_config(const std::string& name);

}  // namespace qkv

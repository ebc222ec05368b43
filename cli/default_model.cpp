#include "default_model.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "core/check.h"

namespace qkv::cli {

std::string default_model() {
  namespace fs = std::filesystem;
  if (const char* chosen = std::getenv("QKV_MODEL"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  std::vector<fs::path> places;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) places.push_back(program.parent_path() / QKV_MODEL_FROM_BIN);
  places.emplace_back(QKV_MODEL_IN_SOURCE);
  std::string looked;
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json")) return place.lexically_normal().string();
    looked += (looked.empty() ? "" : ", ") + place.lexically_normal().string();
  }
  fail("the model that comes with qkv was not found (looked at {}); name one, or set QKV_MODEL",
       looked);
}

}  // namespace qkv::cli

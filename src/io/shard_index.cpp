#include "io/shard_index.h"

#include <algorithm>

#include "core/check.h"
#include "io/json.h"
#include "io/shown.h"

namespace qkv {
namespace {

// A link of the folder may lead elsewhere, as in Hugging Face's cache: whoever made the link could
// read the file. A path in the index is only what a stranger wrote.
bool stays_in_folder(const std::string& name) {
  const auto is_bad = [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  };
  return !name.empty() && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), is_bad);
}

std::map<std::string, std::string> weight_map(const Config& index, const std::string& path) {
  auto files = index.object("weight_map").all_texts();
  check(!files.empty(), "{}: weight_map lists no tensor", path);
  for (const auto& [name, file] : files) {
    if (stays_in_folder(file)) continue;
    fail("{}: weight_map.{} must be the name of a file beside it, got '{}'", path, shown_name(name),
         shown_name(file));
  }
  return files;
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(std::string_view json,
                                                     const std::string& path) {
  return weight_map(Config::parse(json, path), path);
}

std::map<std::string, std::string> read_shard_index(const std::string& path) {
  return weight_map(Config::read(path), path);
}

}  // namespace qkv

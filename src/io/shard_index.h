// model.safetensors.index.json: in which file each tensor of a large model is.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace qkv {

// {tensor name: file name}, of {"metadata": ..., "weight_map": {name: file}}. Throws Error, which
// calls the index `path`, unless every file name is one of the index's own folder.
std::map<std::string, std::string> parse_shard_index(std::string_view json,
                                                     const std::string& path);
std::map<std::string, std::string> read_shard_index(const std::string& path);

}  // namespace qkv

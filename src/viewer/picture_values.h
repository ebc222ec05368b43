// What every form of a picture says in JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "qkv/viewer.h"

namespace qkv::viewer {

// Floats as floats: the shortest digits that read back the same.
using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                  std::int64_t, std::uint64_t, float>;

// The text of it, with U+FFFD for what is not UTF-8: a title may come from a command line.
std::string dumped(const Json& json);

// The model, the text, its tokens and what the model answered.
Json description_of(const AttentionPicture& picture);

// Per head: max_logit, variance, entropy, entropy_relative, saturation.
Json statistics_of(const SeenLayer& layer);

}  // namespace qkv::viewer

// Which heads are meant.
#pragma once

#include <vector>

#include "qkv/viewer.h"

namespace qkv::viewer {

// Error where the picture has no such map, layer, head or row.
void check_selection(const AttentionPicture& picture, const PictureSelection& selection);

// The map that is looked at first: how an encoder-decoder's words align, else the only one.
const AttentionMap& first_map(const AttentionPicture& picture, const std::string& name);

inline std::vector<std::int64_t> chosen_heads(const PictureSelection& selection) {
  return selection.head ? std::vector<std::int64_t>{*selection.head} : std::vector<std::int64_t>{};
}

}  // namespace qkv::viewer

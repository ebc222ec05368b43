// Which heads are meant.
#pragma once

#include <vector>

#include "qkv/viewer.h"

namespace qkv::viewer {

// Error unless there are maps, each with layers whose heads, rows and keys are there and are as
// many as its tokens: what a page or a table is made of.
void check_picture(const AttentionPicture& picture);

// Error where the map has no such layer, head or row; without a layer, where one of them has not.
void check_selection(const AttentionMap& map, const PictureSelection& selection);

// The map of that name; of no name, the one looked at first: how an encoder-decoder's words align,
// else the only one. Error where there is none.
const AttentionMap& first_map(const AttentionPicture& picture, const std::string& name);

inline std::vector<std::int64_t> chosen_heads(const PictureSelection& selection) {
  return selection.head ? std::vector<std::int64_t>{*selection.head} : std::vector<std::int64_t>{};
}

}  // namespace qkv::viewer

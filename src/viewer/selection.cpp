#include "viewer/selection.h"

#include "core/check.h"

namespace qkv::viewer {
namespace {

void check_index(const char* what, std::int64_t index, std::size_t count, const std::string& map) {
  check(index >= 0 && static_cast<std::size_t>(index) < count,
        "{} {} is not there; the {} attention has {} 0 to {}", what, index, map, what, count - 1);
}

}  // namespace

const AttentionMap& first_map(const AttentionPicture& picture, const std::string& name) {
  if (name.empty()) {
    const AttentionMap* cross = picture.map("cross");
    return cross != nullptr ? *cross : picture.maps.front();
  }
  const AttentionMap* found = picture.map(name);
  std::string known;
  for (const AttentionMap& map : picture.maps) known += (known.empty() ? "" : ", ") + map.name;
  check(found != nullptr, "this model has no {} attention; there is {}", name, known);
  return *found;
}

void check_selection(const AttentionPicture& picture, const PictureSelection& selection) {
  const AttentionMap& map = first_map(picture, selection.map);
  const SeenLayer& layer = map.layers.front();
  if (selection.layer) check_index("layer", *selection.layer, map.layers.size(), map.name);
  if (selection.head) {
    check_index("head", *selection.head, static_cast<std::size_t>(layer.heads()), map.name);
  }
  for (const std::int64_t row : selection.rows) {
    check_index("row", row, static_cast<std::size_t>(layer.rows()), map.name);
  }
}

}  // namespace qkv::viewer

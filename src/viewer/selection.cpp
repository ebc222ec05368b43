#include "viewer/selection.h"

#include "core/check.h"
#include "io/shown.h"

namespace qkv::viewer {
namespace {

void check_index(const char* what, std::int64_t index, std::int64_t count, const std::string& map) {
  check(index >= 0 && index < count, "{} {} is not there; the {} attention has {} 0 to {}", what,
        index, map, what, count - 1);
}

void check_in_layer(const AttentionMap& map, const SeenLayer& layer,
                    const PictureSelection& selection) {
  if (selection.head) check_index("head", *selection.head, layer.heads(), map.name);
  for (const std::int64_t row : selection.rows) check_index("row", row, layer.rows(), map.name);
}

void check_layer(const AttentionPicture& picture, const AttentionMap& map, const SeenLayer& layer) {
  check(layer.queries.defined() && layer.queries.rank() == 4 && layer.queries.size(0) == 1 &&
            layer.keys.defined() && layer.keys.rank() == 4 && layer.keys.size(0) == 1,
        "picture: queries and keys of the {} attention must be [1, heads, tokens, size]", map.name);
  check(layer.heads() > 0 && layer.rows() > 0 && layer.key_count() > 0 && layer.keys.size(1) > 0,
        "picture: the {} attention has no heads or no tokens: queries {}, keys {}", map.name,
        layer.queries.shape(), layer.keys.shape());
  const AttentionStatistics& s = layer.statistics;
  for (const Tensor* t :
       {&s.max_logit, &s.score_var, &s.entropy_mean, &s.entropy_relative, &s.saturation}) {
    check(t->defined() && t->numel() == layer.heads(),
          "picture: the {} attention lacks statistics of its {} heads", map.name, layer.heads());
  }
  check(layer.lse.defined() && layer.lse.shape() == Shape({1, layer.heads(), layer.rows()}),
        "picture: the {} attention lacks its log-sum-exps", map.name);
  const std::size_t rows = picture.tokens_of(map.rows).size();
  const std::size_t keys = picture.tokens_of(map.keys).size();
  check(static_cast<std::size_t>(layer.rows()) == rows &&
            static_cast<std::size_t>(layer.key_count()) == keys,
        "picture: the {} attention has {} rows and {} keys, its tokens are {} and {}", map.name,
        layer.rows(), layer.key_count(), rows, keys);
}

}  // namespace

void check_picture(const AttentionPicture& picture) {
  check(!picture.maps.empty(), "picture: there is no attention in it");
  for (const AttentionMap& map : picture.maps) {
    check(!map.layers.empty(), "picture: the {} attention has no layers", map.name);
    for (const SeenLayer& layer : map.layers) check_layer(picture, map, layer);
  }
}

const AttentionMap& first_map(const AttentionPicture& picture, const std::string& name) {
  check(!picture.maps.empty(), "this model has no attention to show");
  if (name.empty()) {
    const AttentionMap* cross = picture.map("cross");
    return cross != nullptr ? *cross : picture.maps.front();
  }
  const AttentionMap* found = picture.map(name);
  std::string known;
  for (const AttentionMap& map : picture.maps) known += (known.empty() ? "" : ", ") + map.name;
  check(found != nullptr, "this model has no {} attention; there is {}", shown_name(name), known);
  return *found;
}

void check_selection(const AttentionMap& map, const PictureSelection& selection) {
  const auto layers = static_cast<std::int64_t>(map.layers.size());
  if (selection.layer) {
    check_index("layer", *selection.layer, layers, map.name);
    check_in_layer(map, map.layers[static_cast<std::size_t>(*selection.layer)], selection);
    return;
  }
  for (const SeenLayer& layer : map.layers) check_in_layer(map, layer, selection);
}

}  // namespace qkv::viewer

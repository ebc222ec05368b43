// A picture as plain numbers, for programs and for tests.
#include <nlohmann/json.hpp>

#include "qkv/ops.h"
#include "qkv/version.h"
#include "viewer/picture_values.h"
#include "viewer/selection.h"

namespace qkv {
namespace {

using viewer::Json;

// [rows, columns] of numbers from `at` on.
Json table(const std::vector<float>& values, std::size_t at, std::size_t rows,
           std::size_t columns) {
  Json list = Json::array();
  for (std::size_t r = 0; r < rows; ++r, at += columns) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(at);
    list.push_back(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(columns)));
  }
  return list;
}

Json vectors(const Tensor& x, std::int64_t head) {
  const Tensor one = to(contiguous(slice(x, 1, head, head + 1)), DType::f32);
  return table(one.to_vector<float>(), 0, static_cast<std::size_t>(x.size(2)),
               static_cast<std::size_t>(x.size(3)));
}

Json heads_of(const SeenLayer& layer, const PictureSelection& selection) {
  const Tensor weights =
      layer.weights({.heads = viewer::chosen_heads(selection), .rows = selection.rows});
  const auto rows = static_cast<std::size_t>(weights.size(2));
  const auto columns = static_cast<std::size_t>(weights.size(3));
  const std::vector<float> values = weights.to_vector<float>();
  Json heads = Json::array();
  for (std::int64_t h = 0; h < weights.size(1); ++h) {
    const std::int64_t head = selection.head.value_or(h);
    Json one{{"head", head}};
    one["weights"] = table(values, static_cast<std::size_t>(h) * rows * columns, rows, columns);
    if (selection.layer && selection.head) {
      one["queries"] = vectors(layer.queries, head);
      one["keys"] = vectors(layer.keys, head * layer.keys.size(1) / layer.heads());
    }
    heads.push_back(std::move(one));
  }
  return heads;
}

Json map_of(const AttentionMap& map, const PictureSelection& selection) {
  Json json{{"name", map.name}, {"rows", map.rows}, {"keys", map.keys}};
  Json layers = Json::array();
  for (std::size_t i = 0; i < map.layers.size(); ++i) {
    const SeenLayer& layer = map.layers[i];
    Json one{{"layer", i}, {"scale", layer.scale()}};
    one["statistics"] = viewer::statistics_of(layer);
    if (!selection.layer || *selection.layer == static_cast<std::int64_t>(i)) {
      one["heads"] = heads_of(layer, selection);
    }
    layers.push_back(std::move(one));
  }
  json["layers"] = std::move(layers);
  return json;
}

}  // namespace

std::string to_json(const AttentionPicture& picture, const PictureSelection& selection) {
  viewer::check_picture(picture);
  const auto is_chosen = [&selection](const AttentionMap& map) {
    return selection.map.empty() || selection.map == map.name;
  };
  viewer::first_map(picture, selection.map);  // is there
  for (const AttentionMap& map : picture.maps) {
    if (is_chosen(map)) viewer::check_selection(map, selection);
  }
  Json json = viewer::description_of(picture);
  if (!selection.rows.empty()) json["selected_rows"] = selection.rows;
  json["maps"] = Json::array();
  for (const AttentionMap& map : picture.maps) {
    if (is_chosen(map)) json["maps"].push_back(map_of(map, selection));
  }
  return viewer::dumped(json);
}

}  // namespace qkv

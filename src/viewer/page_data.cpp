// A picture as the data of a page: small numbers in base64, so many of them as the plan allows.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>

#include "core/threads.h"
#include "qkv/ops.h"
#include "text/base64.h"
#include "viewer/page_plan.h"
#include "viewer/picture_values.h"
#include "viewer/selection.h"

namespace qkv {
namespace {

using viewer::Json;
using viewer::PagePlan;

static_assert(std::endian::native == std::endian::little, "pages hold little-endian numbers");

template <class T>
std::string base64(const std::vector<T>& values) {
  return text::encoded_base64(
      {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

// A weight in 16 bits: 65535 is 1.
std::uint16_t small(float p) {
  return static_cast<std::uint16_t>(std::lround(std::clamp(p, 0.0f, 1.0f) * 65535));
}
std::string small_numbers(std::span<const float> values) {
  std::vector<std::uint16_t> numbers(values.size());
  std::transform(values.begin(), values.end(), numbers.begin(), small);
  return base64(numbers);
}

// The largest weights of each row, largest first: where they are (u32) and what they are (u16).
struct Largest {
  std::vector<std::uint32_t> at;
  std::vector<std::uint16_t> weights;
};

// Adds those of one row of `keys` weights.
void take_largest(const float* row, std::int64_t keys, std::size_t top, Largest& largest) {
  std::vector<std::uint32_t> best;  // sorted; of equal weights the first key wins
  for (std::int64_t j = 0; j < keys; ++j) {
    if (best.size() == top && row[j] <= row[best.back()]) continue;
    if (best.size() == top) best.pop_back();
    const auto behind = std::find_if(best.begin(), best.end(),
                                     [&](std::uint32_t other) { return row[other] < row[j]; });
    best.insert(behind, static_cast<std::uint32_t>(j));
  }
  for (std::size_t i = 0; i < top; ++i) {
    largest.at.push_back(i < best.size() ? best[i] : 0);
    largest.weights.push_back(i < best.size() ? small(row[best[i]]) : 0);
  }
}

// Of every head. Rows are computed a few at a time: the table of a long input would not fit into
// memory.
std::vector<Largest> largest_of(const SeenLayer& layer, std::int64_t top) {
  constexpr std::int64_t kAtOnce = 1 << 22;  // weights
  const std::int64_t heads = layer.heads(), rows = layer.rows(), keys = layer.key_count();
  const std::int64_t step = std::max<std::int64_t>(1, kAtOnce / (heads * keys));
  std::vector<Largest> largest(static_cast<std::size_t>(heads));
  for (std::int64_t first = 0; first < rows; first += step) {
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(std::min(step, rows - first)));
    std::iota(chosen.begin(), chosen.end(), first);
    const auto count = static_cast<std::int64_t>(chosen.size());
    const Tensor weights = layer.weights({.rows = std::move(chosen)});
    parallel_for(heads, [&](std::int64_t head) {
      const float* row = weights.data<float>() + head * count * keys;
      for (std::int64_t r = 0; r < count; ++r, row += keys) {
        take_largest(row, keys, static_cast<std::size_t>(top),
                     largest[static_cast<std::size_t>(head)]);
      }
    });
  }
  return largest;
}

// The numbers of every head.
Json heads_of(const SeenLayer& layer, const PagePlan& plan) {
  const auto block = [&](std::int64_t count) {
    return plan.full ? 1 : (count + plan.side - 1) / plan.side;
  };
  const Tensor weights =
      layer.weights({.pool_rows = block(layer.rows()), .pool_keys = block(layer.key_count())});
  const std::int64_t each = weights.size(2) * weights.size(3);
  Json heads = Json::array();
  for (std::int64_t head = 0; head < layer.heads(); ++head) {
    const std::span<const float> own(weights.data<float>() + head * each,
                                     static_cast<std::size_t>(each));
    heads.push_back({{plan.full ? "weights" : "pooled", small_numbers(own)}});
    if (!plan.full) heads.back()["shape"] = {weights.size(2), weights.size(3)};
  }
  if (plan.top == 0) return heads;
  const std::vector<Largest> largest = largest_of(layer, plan.top);
  for (std::size_t head = 0; head < largest.size(); ++head) {
    heads[head]["top_keys"] = base64(largest[head].at);
    heads[head]["top_weights"] = base64(largest[head].weights);
  }
  return heads;
}

// What the page needs to compute scores itself.
Json rules_of(const SeenLayer& layer) {
  const Mask& mask = layer.options.mask;
  Json json{{"scale", layer.scale()},
            {"softcap", layer.options.softcap},
            {"causal", mask.causal_part},
            {"left", mask.left},
            {"right", mask.right}};
  const Bias& bias = layer.options.bias;
  if (bias.slopes.defined()) {
    json["slopes"] = to(bias.slopes, DType::f32).to_vector<float>();
  } else if (bias.table.defined()) {
    json["distances"] = {{"table", base64(to(bias.table, DType::f32).to_vector<float>())},
                         {"buckets", bias.table.size(0)},
                         {"bidirectional", bias.bidirectional},
                         {"max", bias.max_distance}};
  }
  return json;
}

std::string vectors_of(const Tensor& x, std::int64_t head) {
  return base64(to(contiguous(slice(x, 1, head, head + 1)), DType::f32).to_vector<float>());
}

// Queries, keys and log-sum-exps of one head, if there is room. Heads that share keys pay for them
// once.
void add_vectors(const SeenLayer& layer, std::int64_t head, Json& json, std::size_t& room) {
  Json& one = json["heads"][static_cast<std::size_t>(head)];
  if (one.contains("queries")) return;
  const std::int64_t key_head = head * layer.keys.size(1) / layer.heads();
  Json& keys = json["keys"];
  const std::string name = std::to_string(key_head);
  const auto bytes = [](const Tensor& x) {
    return viewer::base64_size(static_cast<std::size_t>(x.size(2) * x.size(3)) * sizeof(float));
  };
  const Tensor lse = contiguous(slice(layer.lse, 1, head, head + 1));
  const std::size_t cost = bytes(layer.queries) + (keys.contains(name) ? 0 : bytes(layer.keys)) +
                           viewer::base64_size(static_cast<std::size_t>(lse.numel()) * 4);
  if (cost > room) return;
  room -= cost;
  one["queries"] = vectors_of(layer.queries, head);
  one["lse"] = base64(lse.to_vector<float>());
  if (!keys.contains(name)) keys[name] = vectors_of(layer.keys, key_head);
}

// Of any layer: they may differ.
std::int64_t most_heads(const AttentionMap& map) {
  std::int64_t most = 0;
  for (const SeenLayer& layer : map.layers) most = std::max(most, layer.heads());
  return most;
}

Json map_of(const AttentionMap& map, const PagePlan& plan) {
  Json layers = Json::array();
  for (const SeenLayer& layer : map.layers) {
    Json one = rules_of(layer);
    one["statistics"] = viewer::statistics_of(layer);
    one["keys"] = Json::object();
    one["key_heads"] = layer.keys.size(1);
    one["heads"] = heads_of(layer, plan);
    layers.push_back(std::move(one));
  }
  return {{"name", map.name},
          {"rows", map.rows},
          {"keys", map.keys},
          {"heads", most_heads(map)},
          {"head_size", map.layers.front().queries.size(3)},
          {"layers", std::move(layers)}};
}

}  // namespace

std::string to_page_data(const AttentionPicture& picture, const PageOptions& options) {
  viewer::check_picture(picture);
  const PagePlan plan = viewer::plan_page(picture, options.limit);
  Json json = viewer::description_of(picture);
  json["title"] = options.title;
  json["full"] = plan.full;
  json["top"] = plan.full ? 0 : plan.top;
  if (options.layer) json["layer"] = *options.layer;
  if (options.head) json["head"] = *options.head;
  Json maps = Json::array();
  for (const AttentionMap& map : picture.maps) maps.push_back(map_of(map, plan));
  std::size_t room = plan.vectors;
  const auto add = [&](std::int64_t layer, std::int64_t head) {
    for (std::size_t m = 0; m < picture.maps.size(); ++m) {
      const auto at = static_cast<std::size_t>(layer);  // of options, negative: larger than any
      const std::vector<SeenLayer>& layers = picture.maps[m].layers;
      if (at < layers.size() && head >= 0 && head < layers[at].heads()) {
        add_vectors(layers[at], head, maps[m]["layers"][at], room);
      }
    }
  };
  add(options.layer.value_or(0), options.head.value_or(0));
  std::size_t deepest = 0;
  std::int64_t widest = 0;
  for (const AttentionMap& map : picture.maps) {
    deepest = std::max(deepest, map.layers.size());
    widest = std::max(widest, most_heads(map));
  }
  for (std::size_t layer = 0; layer < deepest; ++layer) {
    for (std::int64_t head = 0; head < widest; ++head) add(static_cast<std::int64_t>(layer), head);
  }
  json["maps"] = std::move(maps);
  return viewer::dumped(json);
}

}  // namespace qkv

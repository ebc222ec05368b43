#include "viewer/page_plan.h"

#include <algorithm>

namespace qkv::viewer {
namespace {

// Text that `bytes(layer)` for every head of every layer takes.
template <class Bytes>
std::size_t total(const AttentionPicture& picture, const Bytes& bytes) {
  std::size_t sum = 0;
  for (const AttentionMap& map : picture.maps) {
    for (const SeenLayer& layer : map.layers) {
      sum += static_cast<std::size_t>(layer.heads()) * base64_size(bytes(layer));
    }
  }
  return sum;
}

}  // namespace

PagePlan plan_page(const AttentionPicture& picture, std::size_t limit) {
  const auto weights = [](const SeenLayer& layer) {
    return static_cast<std::size_t>(layer.rows() * layer.key_count()) * 2;
  };
  PagePlan plan;
  std::size_t used = total(picture, weights);
  if (used > limit / 2) {
    plan.full = false;
    used = 0;
    for (plan.side = kMostPoolSide; plan.side > 8; plan.side /= 2) {
      used = total(picture, [&](const SeenLayer&) {
        return static_cast<std::size_t>(plan.side * plan.side) * 2;
      });
      if (used <= limit / 8) break;
    }
    const std::size_t each =
        total(picture, [](const SeenLayer& l) { return static_cast<std::size_t>(l.rows()) * 6; });
    plan.top = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(limit / 2 / std::max<std::size_t>(1, each)), 0, kMostTop);
    used += each * static_cast<std::size_t>(plan.top);
  }
  plan.vectors = limit - std::min(limit, used);
  return plan;
}

}  // namespace qkv::viewer

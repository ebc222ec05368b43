#include "ops/head_figures.h"

#include "core/backend.h"
#include "core/check.h"
#include "ops/checks.h"

namespace qkv {

Tensor head_figures(const std::vector<HeadFigures>& items) {
  if (items.empty()) return {};
  check_floating("head_figures", "x", items.front().x);
  const Device device = items.front().x.device();
  std::int64_t heads = 0;
  for (const HeadFigures& item : items) {
    check_floating("head_figures", "x", item.x);
    check(item.x.rank() == 4, "head_figures: x must be [B, H, S, D], got {}", item.x.shape());
    check(item.x.device() == device, "head_figures: x is on {} and on {}", device, item.x.device());
    heads += item.x.size(1);
  }
  Tensor y = Tensor::empty({heads}, {DType::f32, device});
  backend(device).head_figures(items, y);
  return y;
}

}  // namespace qkv

// What a picture says of itself.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "qkv/viewer.h"

namespace qkv {

float SeenLayer::scale() const {
  return options.scale.value_or(1 / std::sqrt(static_cast<float>(queries.size(3))));
}

Tensor SeenLayer::weights(const WeightsSelection& selection) const {
  return attention_weights(queries, keys, options, selection);
}

const std::vector<SeenToken>& AttentionPicture::tokens_of(const std::string& name) const {
  const auto found =
      std::find_if(tokens.begin(), tokens.end(), [&](const Tokens& t) { return t.name == name; });
  check(found != tokens.end(), "picture: there are no tokens '{}'", name);
  return found->tokens;
}

const AttentionMap* AttentionPicture::map(const std::string& name) const {
  const auto found =
      std::find_if(maps.begin(), maps.end(), [&](const AttentionMap& m) { return m.name == name; });
  return found == maps.end() ? nullptr : &*found;
}

}  // namespace qkv

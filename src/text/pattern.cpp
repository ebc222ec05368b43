#include "text/pattern.h"

#include "core/check.h"

namespace qkv::text {

Pattern Pattern::from(const Config& config) {
  Pattern pattern;
  const bool regex = config.has("Regex");
  check(regex != config.has("String"), "{} must be either a String or a Regex",
        config.where("pattern"));
  pattern.text_ = config.text(regex ? "Regex" : "String");
  if (regex) pattern.regex_ = std::make_shared<Regex>(pattern.text_, config.where("Regex"));
  return pattern;
}

}  // namespace qkv::text

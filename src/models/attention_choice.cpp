#include "models/attention_choice.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "models/family.h"

namespace qkv {
namespace {

constexpr std::array<const char*, 11> kOptions{
    "window", "dilation",   "global_tokens", "global_projections",
    "length", "max_length", "sharing",       "features",
    "kernel", "redraw",     "seed"};

FeatureKind kernel_of(const Config& options) {
  const std::string name = options.text_or("kernel", "softmax");
  check(name == "softmax" || name == "relu", "{} '{}' is neither softmax nor relu",
        options.where("kernel"), name);
  return name == "relu" ? FeatureKind::relu : FeatureKind::softmax;
}

}  // namespace

AttentionChoice::AttentionChoice(const Config& config, const std::string& side,
                                 std::int64_t positions) {
  const std::string own = side.empty() ? "" : side + "_attention";
  const std::string key = !own.empty() && config.has(own) ? own : "attention";
  const std::string name = config.text_or(key, "exact");
  if (name == "exact") return;
  if (name == "longformer") {
    kind_ = Kind::longformer;
  } else if (name == "linformer") {
    kind_ = Kind::linformer;
  } else {
    check(name == "performer", "{} '{}' is none of exact, longformer, linformer and performer",
          config.where(key), name);
    kind_ = Kind::performer;
  }
  const Config o = config.has("attention_options") ? config.object("attention_options") : Config();
  for (const std::string& option : o.keys()) {
    check(std::find(kOptions.begin(), kOptions.end(), option) != kOptions.end(),
          "{} is not known; there are {}", o.where(option), fmt::join(kOptions, ", "));
  }
  constexpr std::int64_t kMaxSeed = std::int64_t{1} << 62;
  longformer_ = {.window = o.integer_or("window", 512, 2, kMaxPositions),
                 .dilations = o.integers("dilation", 1, kMaxPositions),
                 .global_tokens = o.integer_or("global_tokens", 0, 0, kMaxPositions),
                 .global_projections = o.flag_or("global_projections", false)};
  linformer_ = {.length = o.integer_or("length", 256, 1, kMaxPositions),
                .max_length = positions > 0
                                  ? o.integer_or("max_length", positions, 1, kMaxPositions)
                                  : o.integer_or("max_length", 512, 1, kMaxPositions),
                .sharing = nn::linformer_sharing_from_string(o.text_or("sharing", "headwise"))};
  performer_ = {.features = o.integer_or("features", 256, 1, kMaxWidth),
                .kind = kernel_of(o),
                .seed = static_cast<std::uint64_t>(o.integer_or("seed", 0, 0, kMaxSeed)),
                .redraw = o.integer_or("redraw", 0, 0, kMaxPositions)};
}

void AttentionChoice::require_scores(const std::string& family) const {
  check(kind_ == Kind::exact || kind_ == Kind::longformer,
        "{}: its layers add a bias to their scores, which performer and linformer attention do not "
        "have; choose exact or longformer",
        family);
}

void AttentionChoice::apply(nn::LayerConfig& layer, std::int64_t index) {
  switch (kind_) {
    case Kind::exact: return;
    case Kind::longformer:
      layer.attention = std::make_shared<nn::LongformerAttention>(layer.self, longformer_);
      return;
    case Kind::linformer: {
      const bool shares = linformer_.sharing == nn::LinformerSharing::layers;
      const auto attention = std::make_shared<nn::LinformerAttention>(
          layer.self, linformer_, shares ? projection_ : nullptr);
      projection_ = attention->projection();
      layer.attention = attention;
      return;
    }
    case Kind::performer:
      layer.attention = std::make_shared<nn::PerformerAttention>(layer.self, performer_, index);
  }
}

}  // namespace qkv

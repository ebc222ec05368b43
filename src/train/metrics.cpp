#include "train/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace qkv {
namespace {

using nlohmann::ordered_json;

// JSON has no infinity; six digits are all that a curve shows.
ordered_json number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return ordered_json::parse(fmt::format("{:.6g}", value));
}

}  // namespace

std::string metrics_line(const StepReport& r) {
  ordered_json json{{"step", r.step},
                    {"epoch", number(r.epoch)},
                    {"loss", number(r.loss)},
                    {"lr", number(r.lr)},
                    {"gradient_norm", number(r.gradient_norm)},
                    {"tokens_per_second", std::round(r.tokens_per_second)},
                    {"seconds", number(r.seconds)}};
  for (const HeadHealth& h : r.health) {
    json["health"].push_back({{"name", h.name},
                              {"head", h.head},
                              {"max_logit", number(h.max_logit)},
                              {"variance", number(h.variance)},
                              {"entropy", number(h.entropy)},
                              {"saturation", number(h.saturation)},
                              {"q_grad_norm", number(h.q_grad_norm)},
                              {"k_grad_norm", number(h.k_grad_norm)}});
  }
  if (!r.warnings.empty()) {
    std::string all;
    for (const std::string& w : r.warnings) all += (all.empty() ? "" : "; ") + w;
    json["warning"] = all;
  }
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string metrics_line(const Evaluation& e) {
  ordered_json eval{{"loss", number(e.loss)},
                    {"perplexity", number(e.perplexity)},
                    {"accuracy", number(e.accuracy)}};
  if (e.bleu) eval["bleu"] = number(*e.bleu);
  for (const Evaluation::Sample& s : e.samples) {
    eval["samples"].push_back({{"source", s.source}, {"output", s.output}});
  }
  const ordered_json json{{"step", e.step}, {"eval", eval}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace qkv

#include "verify_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "qkv/ops.h"

namespace qkv::cli {

void VerifyReport::compare(const std::string& group, const std::string& name, const Tensor& got,
                           const Tensor& expected, const Tolerance& tolerance,
                           const std::vector<char>& counts) {
  Comparison c{.group = group, .name = name, .allowed = tolerance.relative, .note = {}};
  if (!got.defined()) return fail(group, name, "the model computes no such thing");
  if (got.shape() != expected.shape() && got.numel() != expected.numel()) {
    return fail(
        group, name,
        fmt::format("shape {}, expected {}", to_string(got.shape()), to_string(expected.shape())));
  }
  const std::vector<float> a = to(got, DType::f32).to_vector<float>();
  const std::vector<float> b = to(expected, DType::f32).to_vector<float>();
  const std::size_t width = counts.empty() ? 1 : std::max<std::size_t>(1, a.size() / counts.size());
  double magnitude = 0;
  bool is_nan = false;
  const auto join = [&](double& all, double one) {
    all = tolerance.by_length ? std::hypot(all, one) : std::max(all, one);
  };
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!counts.empty() && counts[i / width] == 0) continue;
    const double difference = std::abs(double{a[i]} - b[i]);
    is_nan |= std::isnan(difference);
    join(c.absolute, difference);
    join(magnitude, std::abs(double{b[i]}));
  }
  c.relative = magnitude > 0 ? c.absolute / magnitude : c.absolute;
  c.passed = !is_nan && c.absolute <= tolerance.relative * magnitude + tolerance.absolute;
  if (is_nan) c.note = "not a number";
  all_.push_back(c);
}

void VerifyReport::compare_tokens(const std::string& name, const std::vector<std::int64_t>& got,
                                  const std::vector<std::int64_t>& expected, std::size_t at_least) {
  const auto differs = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  const auto same = static_cast<std::size_t>(differs.second - expected.begin());
  const bool all = got.size() == expected.size() && same == expected.size();
  Comparison c{.group = "generation", .name = name, .note = {}};
  c.passed = all || (at_least > 0 && same >= std::min(at_least, expected.size()));
  if (!all) {
    c.note = fmt::format("the first {} of {} tokens agree", same, expected.size());
    c.absolute = static_cast<double>(expected.size() - same);
  }
  all_.push_back(c);
}

void VerifyReport::fail(const std::string& group, const std::string& name, const std::string& why) {
  all_.push_back({.group = group, .name = name, .passed = false, .note = why});
}

std::size_t VerifyReport::passed() const {
  return static_cast<std::size_t>(
      std::count_if(all_.begin(), all_.end(), [](const Comparison& c) { return c.passed; }));
}

std::string VerifyReport::text(bool verbose) const {
  std::string out =
      fmt::format("  {:<44} {:>10} {:>10} {:>10}\n", "compared", "max abs", "max rel", "allowed");
  const auto line = [&](const std::string& name, const Comparison& c) {
    out += c.group == "generation"
               ? fmt::format("  {:<44} {:>32}  {}\n", name, c.note.empty() ? "identical" : c.note,
                             c.passed ? "ok" : "FAILED")
               : fmt::format("  {:<44} {:>10.2e} {:>10.2e} {:>10.0e}  {}{}\n", name, c.absolute,
                             c.relative, c.allowed, c.passed ? "ok" : "FAILED",
                             c.note.empty() ? "" : ": " + c.note);
  };
  std::vector<std::string> groups;
  for (const Comparison& c : all_) {
    if (std::find(groups.begin(), groups.end(), c.group) == groups.end()) groups.push_back(c.group);
  }
  for (const std::string& group : groups) {
    Comparison worst;
    std::size_t count = 0;
    for (const Comparison& c : all_) {
      if (c.group != group) continue;
      if (verbose || !c.passed) line(c.name, c);
      if (!c.passed) continue;
      worst.absolute = std::max(worst.absolute, c.absolute);
      worst.relative = std::max(worst.relative, c.relative);
      worst.allowed = std::max(worst.allowed, c.allowed);
      if (worst.note.empty()) worst.note = c.note;
      ++count;
    }
    if (verbose || count == 0) continue;
    worst.group = group;
    worst.passed = true;
    line(count > 1 ? fmt::format("{} ({} tensors)", group, count) : group, worst);
  }
  return out;
}

nlohmann::ordered_json VerifyReport::json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Comparison& c : all_) {
    list.push_back({{"name", c.name},
                    {"group", c.group},
                    {"max_abs", c.absolute},
                    {"max_rel", c.relative},
                    {"allowed", c.allowed},
                    {"passed", c.passed},
                    {"note", c.note}});
  }
  return list;
}

}  // namespace qkv::cli

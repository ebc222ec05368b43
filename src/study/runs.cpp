// study_runs: the curves of training runs, from what they wrote while they went on.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "io/file.h"
#include "study/curves.h"

namespace qkv {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestMetrics = std::uint64_t{1} << 30;

// "nan", "inf" and "-inf" are how a run writes what JSON cannot.
double number_of(const json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end()) return std::nan("");
  if (found->is_number()) return found->get<double>();
  const std::string text = found->is_string() ? found->get<std::string>() : "";
  if (text == "inf" || text == "-inf") return (text == "inf" ? 1 : -1) * INFINITY;
  return std::nan("");
}

HeadHealth head_of(const json& head) {
  HeadHealth h;
  h.max_logit = number_of(head, "max_logit");
  h.entropy = number_of(head, "entropy");
  h.saturation = number_of(head, "saturation");
  h.q_grad_norm = number_of(head, "q_grad_norm");
  h.k_grad_norm = number_of(head, "k_grad_norm");
  return h;
}

Curve read_curve(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "metrics.jsonl").string();
  std::istringstream lines(read_file(path, kLargestMetrics));
  Curve curve;
  for (std::string text; std::getline(lines, text);) {
    // The last line of a run that is still growing may be a part of one.
    const json line = json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("loss") || !line.contains("step")) continue;
    std::vector<HeadHealth> heads;
    if (line.contains("health") && line["health"].is_array()) {
      for (const json& head : line["health"]) {
        if (head.is_object()) heads.push_back(head_of(head));
      }
    }
    const double step = number_of(line, "step");
    if (!(step >= 0 && step < 1e15)) continue;
    curve.push_back(
        study::point_of(static_cast<std::int64_t>(step), number_of(line, "loss"), heads));
  }
  check(!curve.empty(), "study runs: {} has no report of a step yet", path);
  return curve;
}

// runs/first/ -> "first"
std::string name_of_folder(const std::string& folder) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

RunsStudy study_runs(const std::vector<std::string>& folders) {
  check(!folders.empty(), "study runs: no folder of a run given");
  check(folders.size() <= std::size(study::kStyles),
        "study runs: {} runs cannot be told apart in one drawing, {} can", folders.size(),
        std::size(study::kStyles));
  RunsStudy result;
  for (const std::string& folder : folders) {
    result.groups.push_back({name_of_folder(folder), {read_curve(folder)}});
  }
  return result;
}

}  // namespace qkv

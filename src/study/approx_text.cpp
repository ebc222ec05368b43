// The study of approximations for a terminal, and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "qkv/study_approx.h"

namespace qkv {
namespace {

struct Total {
  ApproxStudyRow first;
  double output_error = 0, worst = 0, weight_error = 0, kept = 0;
  int count = 0;

  void add(const ApproxStudyRow& row) {
    if (count == 0) first = row;
    output_error += row.output_error;
    worst = std::max(worst, row.output_error);
    weight_error += row.weight_error;
    kept += row.entropy - row.exact_entropy;
    ++count;
  }
};

std::string line_of(const Total& t, const std::string& name) {
  const double n = t.count;
  return fmt::format("  {:<14}{:<12}{:>6}{:>9.2f}{:>14.3f}{:>12.3f}{:>14.3f}{:>+12.2f}\n", name,
                     t.first.method, t.first.size, t.first.cost, t.output_error / n, t.worst,
                     t.weight_error / n, t.kept / n);
}

// Totals of the rows that `key` takes for the same, in the order they come.
template <class Key>
std::vector<std::pair<Total, std::string>> totals_by(const ApproxStudy& study, Key key) {
  std::vector<std::pair<Total, std::string>> totals;
  for (const ApproxStudyRow& row : study.rows) {
    const std::string name = key(row);
    auto found = std::find_if(totals.begin(), totals.end(), [&](const auto& t) {
      return t.second == name && t.first.first.method == row.method &&
             t.first.first.size == row.size;
    });
    if (found == totals.end()) found = totals.insert(totals.end(), {Total(), name});
    found->first.add(row);
  }
  return totals;
}

}  // namespace

std::string to_text(const ApproxStudy& study) {
  std::string text = fmt::format("{}, {} tokens\n\n", study.model, study.tokens);
  text += fmt::format("  {:<14}{:<12}{:>6}{:>9}{:>14}{:>12}{:>14}{:>12}\n", "", "method", "size",
                      "cost", "output error", "worst head", "weight error", "entropy");
  for (const auto& [total, name] :
       totals_by(study, [](const ApproxStudyRow&) { return std::string("all"); })) {
    text += line_of(total, name);
  }
  text += "\n";
  for (const auto& [total, name] : totals_by(study, [](const ApproxStudyRow& row) {
         return row.side + " " + std::to_string(row.layer);
       })) {
    text += line_of(total, name);
  }
  text +=
      "\n  cost: multiply-adds, as a share of exact attention's; entropy: nats more than exact; "
      "linformer\n  projects by means of stretches, since its projections would have to be "
      "learned\n";
  return text;
}

std::string to_json(const ApproxStudy& study) {
  nlohmann::ordered_json json{{"model", study.model}, {"tokens", study.tokens}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const ApproxStudyRow& row : study.rows) {
    json["rows"].push_back({{"side", row.side},
                            {"layer", row.layer},
                            {"head", row.head},
                            {"method", row.method},
                            {"size", row.size},
                            {"cost", row.cost},
                            {"output_error", row.output_error},
                            {"weight_error", row.weight_error},
                            {"entropy", row.entropy},
                            {"exact_entropy", row.exact_entropy}});
  }
  return json.dump(2);
}

}  // namespace qkv

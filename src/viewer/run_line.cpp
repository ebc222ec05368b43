#include "viewer/run_line.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/check.h"
#include "io/shown.h"
#include "io/strict_json.h"
#include "text/utf8.h"

namespace qkv::viewer {
namespace {

using JsonTree = nlohmann::json;

constexpr double kMostSteps = 9007199254740992;  // 2^53: whole numbers a double holds
constexpr double kMostHead = 16383;
constexpr std::size_t kMostWarning = 1000;  // bytes of a warning that are kept
// A table has a cell for every head up to the last, told of or not. So many more than entries, as a
// report of the worst heads alone may need.
constexpr std::size_t kCellsPerEntry = 8, kSpareCells = 1 << 16;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What training writes for numbers that JSON does not have counts as not told.
double number_in(const JsonTree& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return kNone;
  if (found->is_string()) {
    const auto& text = found->get_ref<const std::string&>();
    if (text == "nan" || text == "inf" || text == "-inf") return kNone;
  }
  check(found->is_number(), "'{}' must be a number", key);
  return found->get<double>();
}

struct HealthRow {
  std::size_t first = 0, heads = 0;
};

std::size_t head_of(const JsonTree& entry) {
  const double head = number_in(entry, "head");
  check(head >= 0 && head <= kMostHead && head == std::floor(head),
        "health: 'head' must be a whole number from 0 to {}", kMostHead);
  return static_cast<std::size_t>(head);
}

// {"name", "head", statistic: value} of each head becomes a table per statistic.
RunHealth health_of(const JsonTree& entries, double step) {
  RunHealth report;
  report.step = step;
  std::unordered_map<std::string, std::size_t> row_of;
  std::vector<HealthRow> rows;
  std::vector<std::size_t> row_of_entry;
  for (const JsonTree& entry : entries) {
    check(entry.is_object() && entry.contains("name") && entry["name"].is_string(),
          "health: an entry must be an object with a 'name'");
    const auto& name = entry["name"].get_ref<const std::string&>();
    const auto [found, is_new] = row_of.try_emplace(name, rows.size());
    if (is_new) {
      rows.emplace_back();
      report.names.push_back(name);
    }
    HealthRow& row = rows[found->second];
    row.heads = std::max(row.heads, head_of(entry) + 1);
    row_of_entry.push_back(found->second);
  }
  std::size_t total = 0;
  for (HealthRow& row : rows) {
    row.first = total;
    total += row.heads;
    report.heads.push_back(static_cast<std::uint32_t>(row.heads));
  }
  check(total <= kSpareCells + kCellsPerEntry * entries.size(),
        "health: {} entries name heads of a table of {} cells", entries.size(), total);
  for (std::size_t s = 0; s < kHealthNames.size(); ++s) {
    std::vector<float>& cells = report.cells[s];
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const double value = number_in(entries[i], kHealthNames[s]);
      if (!(std::abs(value) <= std::numeric_limits<float>::max())) continue;
      if (cells.empty()) cells.assign(total, std::numeric_limits<float>::quiet_NaN());
      cells[rows[row_of_entry[i]].first + head_of(entries[i])] = static_cast<float>(value);
    }
  }
  return report;
}

RunEvaluation evaluation_of(const JsonTree& eval, double step) {
  check(eval.is_object(), "'eval' must be an object");
  return {step, number_in(eval, "loss"), number_in(eval, "perplexity"), number_in(eval, "accuracy"),
          number_in(eval, "bleu")};
}

RunWarning warning_of(const JsonTree& warning, double step) {
  check(warning.is_string(), "'warning' must be a string");
  const auto& text = warning.get_ref<const std::string&>();
  if (text.size() <= kMostWarning) return {step, text};
  return {step, text.substr(0, text::utf8_before(text, kMostWarning + 1)) + "…"};
}

// The parts are read one by one: one that is wrong takes none of the others with it.
void read_parts(const JsonTree& object, const std::string& where, RunLine& line) {
  const auto part = [&](const char* key, const auto& take) {
    const auto found = object.find(key);
    if (found == object.end()) return;
    try {
      take(*found);
    } catch (const Error& error) {
      if (line.problem.empty()) line.problem = where + ": " + error.what();
    }
  };
  const double step = line.step;
  part("loss", [&](const JsonTree&) {
    line.point = {step, number_in(object, "loss"), number_in(object, "lr"),
                  number_in(object, "tokens_per_second"), number_in(object, "seconds")};
  });
  part("eval", [&](const JsonTree& eval) { line.evaluation = evaluation_of(eval, step); });
  part("warning", [&](const JsonTree& text) { line.warning = warning_of(text, step); });
  part("health", [&](const JsonTree& entries) {
    check(entries.is_array(), "'health' must be a list");
    RunHealth health = health_of(entries, step);
    const auto told = [](const std::vector<float>& cells) { return !cells.empty(); };
    if (std::any_of(health.cells.begin(), health.cells.end(), told))
      line.health = std::move(health);
  });
}

}  // namespace

std::size_t RunHealth::bytes() const {
  std::size_t sum = sizeof(RunHealth) + heads.size() * sizeof(heads[0]);
  for (const std::string& name : names) sum += sizeof(name) + name.size();
  for (const std::vector<float>& table : cells) sum += table.size() * sizeof(float);
  return sum;
}

RunLine read_run_line(std::string_view text, const std::string& where) try {
  RunLine line;
  const JsonTree object = strict_json(text, where);
  check(object.is_object(), "{}: a line must be an object", where);
  const auto step = object.find("step");
  check(step != object.end() && step->is_number(), "{}: 'step' must be a number", where);
  const auto number = step->get<double>();
  check(number >= 0 && number <= kMostSteps, "{}: 'step' must be from 0 to 2^53", where);
  line.step = number;
  read_parts(object, where, line);
  return line;
} catch (const Error& error) {
  return {.problem = error.what()};
}

}  // namespace qkv::viewer

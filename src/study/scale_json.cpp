#include <nlohmann/json.hpp>

#include "qkv/version.h"
#include "study/scale_report.h"

namespace qkv {
namespace {

using Json = nlohmann::ordered_json;

Json to_value(const Measured& value) {
  return {{"mean", value.mean}, {"standard_error", value.standard_error}};
}

Json to_value(const ScaleStudyRow& row) {
  Json value{{"head_size", row.head_size},
             {"scale_name", row.scale_name},
             {"scale", row.scale},
             {"input_variance", row.input_variance}};
  for (const study::Column& column : study::kColumns) {
    const Quantity& quantity = row.*column.member;
    Json cell{{"measured", to_value(quantity.measured)}};
    if (quantity.expected) {
      cell["expected"] = to_value(*quantity.expected);
      cell["deviation"] = quantity.deviation();
    }
    value[column.key] = cell;
  }
  return value;
}

}  // namespace

std::string to_json(const ScaleStudy& study) {
  const ScaleStudyOptions& o = study.options;
  Json value{{"study", "scale"},
             {"version", kVersion},
             {"target", study.target},
             {"threads", study.threads},
             {"options",
              {{"head_sizes", o.head_sizes},
               {"keys", o.keys},
               {"queries", o.queries},
               {"value_size", o.value_size},
               {"trials", o.trials},
               {"input_variance", o.input_variance},
               {"seed", o.seed}}}};
  value["rows"] = value["variance_rows"] = value["findings"] = Json::array();
  for (const auto& row : study.rows) value["rows"].push_back(to_value(row));
  for (const auto& row : study.variance_rows) value["variance_rows"].push_back(to_value(row));
  for (const auto& finding : findings(study)) {
    value["findings"].push_back(
        {{"verdict", study::name_of(finding.verdict)}, {"text", finding.text}});
  }
  return value.dump(2);
}

}  // namespace qkv

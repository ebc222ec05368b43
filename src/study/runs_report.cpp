// The curves of training runs as text, JSON, a page and one drawing.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "qkv/version.h"
#include "study/curves.h"
#include "study/curves_report.h"
#include "study/page.h"

namespace qkv {

std::string to_text(const RunsStudy& study) {
  return fmt::format("{} run{}\n\n", study.groups.size(), study.groups.size() == 1 ? "" : "s") +
         study::curves_text(study.groups);
}

std::string to_json(const RunsStudy& study) {
  const nlohmann::ordered_json value{
      {"study", "runs"}, {"version", kVersion}, {"runs", study::curves_json(study.groups)}};
  // The name of a folder need not be UTF-8.
  return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string to_html(const RunsStudy& study) {
  const std::string head = fmt::format(
      "<header>\n<h1>Training runs</h1>\n<p class=\"muted\">Drawn by qkv {} from what the runs "
      "wrote in metrics.jsonl.</p>\n</header>\n",
      kVersion);
  return study::page("Training runs", head + "<section>\n<h2>Curves</h2>\n" +
                                          study::curves_html(study.groups) + "</section>\n");
}

std::string to_svg(const RunsStudy& study) {
  return study::curves_svg(study.groups, {"loss", "max_logit"});
}

}  // namespace qkv

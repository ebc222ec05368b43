// The training study as text, JSON and one HTML page.
#include <fmt/format.h>

#include "qkv/study.h"
#include "qkv/version.h"
#include "study/curves_report.h"
#include "study/page.h"
#include "study/words.h"

namespace qkv {
namespace study {
namespace {

constexpr const char* kTrainMethod = R"html(
<p>One small decoder (RMS norms before each part, rotary positions, a gated feed-forward) is trained
once with each scale, from the same weights on the same batches. Matrices are drawn after Glorot and
Bengio, so that the entries of q and k begin with variance 1: what the argument for 1/√d<sub>k</sub>
assumes. A smaller draw hides the effect at first, until the weights have grown.</p>
<p>In associative recall a row holds facts, each a key and its value in one token, and then every key
once more in another order; the loss counts the values of these alone. Nothing but attention can know
them: it has to find the fact by its key.</p>
<p>Largest logit, entropy and saturation are the statistics that <code>attention_forward</code> computes
in its own pass, of one batch at each report. A first row, which sees only itself, is always
saturated. Gradients are those of the loss at q and k as they are multiplied.</p>
)html";

std::string task_text(const TrainStudyOptions& o) {
  return o.text_file.empty() ? fmt::format("associative recall of {} pairs", o.pairs)
                             : fmt::format("bytes of {} in rows of {}", o.text_file, o.length);
}

std::string describe_model(const TrainStudy& study) {
  const TrainStudyOptions& o = study.options;
  const auto plural = [](std::int64_t count) { return count == 1 ? "" : "s"; };
  return fmt::format("{} layer{} of {} head{}, d_k = {}, {} parameters", o.layers, plural(o.layers),
                     o.heads, plural(o.heads), o.head_size, study.parameters);
}

std::string describe_runs(const TrainStudyOptions& o) {
  return fmt::format(
      "{}: {} steps of {} rows, {} at {:g}, seed {}{}", task_text(o), o.steps, o.batch,
      to_string(o.rule), o.lr, o.seed,
      o.seeds == 1 ? "" : fmt::format(" to {}", o.seed + static_cast<std::uint64_t>(o.seeds) - 1));
}

}  // namespace
}  // namespace study

std::string to_text(const TrainStudy& study) {
  return fmt::format(
             "Why 1/sqrt(d_k)?  One model, trained with three scales on {}\n{}\n{}\n"
             "First report -> last{}; guessing has loss {:.3f}.\n"
             "Curves of one quantity share their range.\n\n",
             study::machine_text(study.target, study.threads), study::describe_model(study),
             study::describe_runs(study.options),
             study.options.seeds > 1 ? " (smallest to largest of the seeds)" : "", study.guessing) +
         study::curves_text(study.groups) + study::findings_text(findings(study));
}

std::string to_json(const TrainStudy& study) {
  using Json = nlohmann::ordered_json;
  const TrainStudyOptions& o = study.options;
  Json value{{"study", "train"},
             {"version", kVersion},
             {"target", study.target},
             {"threads", study.threads},
             {"options",
              {{"steps", o.steps},
               {"reports", o.reports},
               {"seed", o.seed},
               {"seeds", o.seeds},
               {"layers", o.layers},
               {"heads", o.heads},
               {"head_size", o.head_size},
               {"batch", o.batch},
               {"optimizer", to_string(o.rule)},
               {"lr", o.lr},
               {"text", o.text_file},
               {"length", o.length},
               {"pairs", o.pairs}}},
             {"parameters", study.parameters},
             {"guessing", study.guessing},
             {"scales", study::curves_json(study.groups)}};
  for (std::size_t i = 0; i < study.scales.size(); ++i) {
    value["scales"][i]["scale"] = study.scales[i];
  }
  value["findings"] = Json::array();
  for (const Finding& finding : findings(study)) {
    value["findings"].push_back(
        {{"verdict", study::name_of(finding.verdict)}, {"text", finding.text}});
  }
  return value.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string to_html(const TrainStudy& study) {
  std::string html = fmt::format(
      "<header>\n<h1>Why 1/√d<sub>k</sub>? Seen in training</h1>\n"
      "<p class=\"lead\">One small model, trained with three scales from the same weights on the "
      "same batches by qkv {}.</p>\n<p class=\"muted\">{}; {}; {}. Guessing has loss {:.3f}.</p>\n"
      "</header>\n",
      kVersion, study::pretty(study::describe_model(study)),
      study::pretty(study::describe_runs(study.options)),
      study::escaped(study::machine_text(study.target, study.threads)), study.guessing);
  std::vector<CurveGroup> named = study.groups;
  for (CurveGroup& group : named) group.name = "scale " + group.name;
  html += study::findings_html(findings(study)) + "<section>\n<h2>Curves</h2>\n" +
          study::curves_html(named) + "</section>\n<section class=\"method\">\n" +
          "<h2>How it was measured</h2>\n" + study::kTrainMethod + "</section>\n";
  return study::page("Why 1/√d_k? Seen in training", html);
}

}  // namespace qkv

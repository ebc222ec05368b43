// qkv classify: which of its labels a classifier gives a text.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "io/shown.h"
#include "output.h"
#include "qkv/ops.h"
#include "ranking.h"
#include "text_batches.h"
#include "text_model.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

struct ClassifyCommand {
  Common common;
  ModelOptions model;
  std::vector<std::string> texts;
  std::size_t top = 3;
  TextBatchOptions batches{.doing = "classifying"};
};

std::string label(const ModelInfo& info, std::size_t index) {
  return index < info.labels.size() ? info.labels[index] : fmt::format("LABEL_{}", index);
}

// A text may belong to several classes, or to one of them; a single "class" is a score.
std::vector<Ranked> rank(const ModelInfo& info, std::span<const float> logits, std::size_t top) {
  if (logits.size() == 1) return {{0, logits[0]}};
  return info.multi_label ? rank_by_sigmoid(logits, top) : rank_by_softmax(logits, top);
}

void print(const ClassifyCommand& c, const ModelInfo& info, const std::vector<std::string>& texts,
           const std::vector<std::vector<Ranked>>& ranked) {
  const bool is_score = info.classes == 1;
  ordered_json results = ordered_json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ordered_json labels = ordered_json::array();
    if (!c.common.json) write_output(texts[i] + "\n");
    for (const auto& [index, value] : ranked[i]) {
      const std::string name = label(info, index);
      labels.push_back({{"label", name}, {is_score ? "score" : "probability", value}});
      if (c.common.json) continue;
      write_output(is_score ? fmt::format("  {:8.4f}  {}\n", value, shown_name(name))
                            : fmt::format("  {:6.2f} %  {}\n", 100 * value, shown_name(name)));
    }
    results.push_back({{"text", texts[i]}, {"labels", std::move(labels)}});
  }
  if (c.common.json) print_json({{"results", std::move(results)}});
}

void run_classify(const ClassifyCommand& c) {
  c.common.apply();
  const std::unique_ptr<Model> model = open_model(c.model, Task::classify, c.common);
  const Tokenizer tokenizer =
      open_tokenizer(c.model.folder, "put the model's tokenizer beside its weights");
  const std::vector<std::string> texts =
      c.texts.empty() ? read_input_lines("a text per line") : c.texts;
  check(!texts.empty(), "there is nothing to classify; give texts, or lines on standard input");
  std::vector<std::vector<Ranked>> ranked(texts.size());
  run_texts(*model, tokenizer, texts, c.batches, [&](const TextBatch& batch) {
    const std::vector<float> logits = to(batch.output.logits, DType::f32).to_vector<float>();
    const std::size_t classes = logits.size() / batch.texts.size();
    for (std::size_t i = 0; i < batch.texts.size(); ++i) {
      const auto row = std::span(logits).subspan(i * classes, classes);
      ranked[batch.texts[i]] = rank(model->info(), row, c.top);
    }
  });
  print(c, model->info(), texts, ranked);
}

}  // namespace

void add_classify(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("classify", "Label texts, with probabilities");
  command->footer(examples("qkv classify path/to/classifier 'I loved every minute of it.'",
                           "qkv classify path/to/classifier --top 1 --json < reviews.txt"));
  const auto c = std::make_shared<ClassifyCommand>();
  c->model.add_to(*command);
  add_texts(*command, c->texts);
  command->add_option("--top", c->top, "Labels to show for each text")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  c->common.add_to(*command);
  command->callback([&job, c] { job = [c] { run_classify(*c); }; });
}

}  // namespace qkv::cli

// qkv fill: the words a masked language model would put in a gap.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "output.h"
#include "qkv/ops.h"
#include "ranking.h"
#include "text_batches.h"
#include "text_model.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

struct FillCommand {
  Common common;
  ModelOptions model;
  std::string text;
  std::size_t top = 5;
  TextBatchOptions batches{.doing = "filling", .may_cut = false};
};

struct Candidate {
  std::int64_t id;
  std::string text;
  double probability;
};
using Gap = std::vector<Candidate>;

// People write gaps in several ways: [MASK], <mask>, ___. All become the tokenizer's own.
std::string with_own_mask(const std::string& text, const std::string& mask) {
  constexpr std::size_t kUnderscores = 3;  // fewer are part of a name
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line = std::min(text.find_first_not_of('_', at), text.size()) - at;
    std::size_t gap = line >= kUnderscores ? line : 0;
    for (const std::string_view usual : {"[MASK]", "<mask>"}) {
      if (text.compare(at, usual.size(), usual) == 0) gap = usual.size();
    }
    result += gap > 0 ? mask : text.substr(at, 1);
    at += std::max<std::size_t>(gap, 1);
  }
  return result;
}

std::string spelled(const Tokenizer& tokenizer, std::int64_t id) {
  const std::string token = tokenizer.token(id);
  if (token.starts_with("##")) return token;  // the rest of a word: decoding would hide that
  std::string text = tokenizer.decode(std::vector{id}, {.skip_special = false});
  text.erase(0, text.find_first_not_of(' '));
  return text.empty() ? token : text;
}

std::vector<Gap> gaps_of(const Tokenizer& tokenizer, const std::vector<std::int64_t>& ids,
                         std::span<const float> logits, std::size_t top) {
  const std::size_t classes = logits.size() / ids.size();
  std::vector<Gap> gaps;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] != *tokenizer.mask_id()) continue;
    Gap& gap = gaps.emplace_back();
    for (const Ranked& r : rank_by_softmax(logits.subspan(t * classes, classes), top)) {
      const auto id = static_cast<std::int64_t>(r.index);
      const bool has_name = id < tokenizer.size();  // tables are often padded beyond the vocabulary
      gap.push_back(
          {id, has_name ? spelled(tokenizer, id) : fmt::format("[{}]", id), r.probability});
    }
  }
  return gaps;
}

void print_text(const std::string& text, const std::vector<Gap>& gaps) {
  write_output(text + "\n");
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    if (gaps.size() > 1) write_output(fmt::format("  gap {}\n", i + 1));
    for (const Candidate& c : gaps[i]) {
      write_output(fmt::format("  {:6.2f} %  {}\n", 100 * c.probability, c.text));
    }
  }
}

ordered_json to_json(const std::string& text, const std::vector<Gap>& gaps) {
  ordered_json all = ordered_json::array();
  for (const Gap& gap : gaps) {
    ordered_json list = ordered_json::array();
    for (const Candidate& c : gap) {
      list.push_back({{"text", c.text}, {"id", c.id}, {"probability", c.probability}});
    }
    all.push_back(std::move(list));
  }
  return {{"text", text}, {"gaps", std::move(all)}};
}

void run_fill(const FillCommand& c) {
  c.common.apply();
  const std::unique_ptr<Model> model = open_model(c.model, Task::fill, c.common);
  const Tokenizer tokenizer =
      open_tokenizer(c.model.folder, "put the model's tokenizer beside its weights");
  check(tokenizer.mask_id().has_value(), "{}: its tokenizer has no mask token ({})", c.model.folder,
        tokenizer.kind());
  const std::string mask = tokenizer.token(*tokenizer.mask_id());
  std::vector<std::string> texts =
      c.text.empty() ? read_input_lines("a text per line") : std::vector{c.text};
  for (std::string& text : texts) {
    text = with_own_mask(text, mask);
    check(text.find(mask) != std::string::npos, "'{}': there is no gap to fill; write {} or ___",
          text, mask);
  }
  std::vector<std::vector<Gap>> gaps(texts.size());
  run_texts(*model, tokenizer, texts, c.batches, [&](const TextBatch& batch) {
    const std::vector<float> logits = to(batch.output.logits, DType::f32).to_vector<float>();
    const auto classes = static_cast<std::size_t>(batch.output.logits.size(2));
    const std::size_t stride = logits.size() / batch.texts.size();
    for (std::size_t i = 0; i < batch.texts.size(); ++i) {
      const std::vector<std::int64_t>& ids = batch.tokens[i]->ids;
      const auto rows = std::span(logits).subspan(i * stride, ids.size() * classes);
      gaps[batch.texts[i]] = gaps_of(tokenizer, ids, rows, c.top);
    }
  });
  ordered_json results = ordered_json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (c.common.json) {
      results.push_back(to_json(texts[i], gaps[i]));
    } else {
      print_text(texts[i], gaps[i]);
    }
  }
  if (c.common.json) print_json({{"results", std::move(results)}});
}

}  // namespace

void add_fill(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("fill", "Fill the gaps of a text: [MASK], <mask> or ___");
  command->footer(examples("qkv fill path/to/bert 'Paris is the ___ of France.'",
                           "qkv fill path/to/roberta --top 3 --json < sentences.txt"));
  const auto c = std::make_shared<FillCommand>();
  c->model.add_to(*command);
  command->add_option("text", c->text, "A text with gaps (default: the lines of standard input)");
  command->add_option("--top", c->top, "Candidates to show for each gap")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  c->common.add_to(*command);
  command->callback([&job, c] { job = [c] { run_fill(*c); }; });
}

}  // namespace qkv::cli

// qkv study approx: what approximations lose on the queries, keys and values of a real model.
#include "qkv/study_approx.h"

#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "core/check.h"
#include "default_model.h"
#include "io/file.h"
#include "io/shown.h"
#include "output.h"
#include "text_model.h"

namespace qkv::cli {
namespace {

struct StudyApproxOptions {
  Common common;
  ApproxStudyOptions study;
  std::string model, out;
  std::vector<std::string> texts;
};

void run_approx(StudyApproxOptions& o) {
  o.common.apply();
  if (o.model.empty()) o.model = default_model();
  const std::unique_ptr<Model> model = load_model(o.model, {.device = o.common.chosen_device()});
  const Tokenizer tokenizer = open_tokenizer(o.model, "the study needs one to read the text");
  check(!o.texts.empty(), "study approx: a text is needed");
  std::vector<std::int64_t> ids = tokenizer.encode(fmt::format("{}", fmt::join(o.texts, " ")));
  const ModelInfo& info = model->info();
  const auto most = static_cast<std::size_t>(info.max_positions);
  if (most > 0 && ids.size() > most) ids.resize(most);
  const auto count = static_cast<std::int64_t>(ids.size());
  // Of an encoder-decoder the encoder alone is looked at.
  const ModelInput input{.ids = Tensor::from(ids, {1, count})};
  const ApproxStudy study = study_approx(*model, input, o.study);
  if (!o.out.empty()) write_file_atomically(o.out, to_svg(study));
  write_output((o.common.json ? to_json(study) : shown_text(to_text(study))) + "\n");
}

}  // namespace

void add_study_approx(CLI::App& study, Job& job) {
  CLI::App* command = study.add_subcommand(
      "approx", "What Performer, Longformer and Linformer lose on a model's own q, k and v");
  command->footer(
      examples("qkv study approx --model path/to/minilm --out approx.svg \"A long text ...\"",
               "qkv study approx --model path/to/gpt2 --features 64,4096 --json TEXT"));
  const auto o = std::make_shared<StudyApproxOptions>();
  command
      ->add_option("--model", o->model,
                   "A model's folder (default: the translator that comes with qkv)")
      ->type_name("DIR");
  add_texts(*command, o->texts);
  command->add_option("--features", o->study.features, "Performer: random features")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--windows", o->study.windows, "Longformer: windows")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--lengths", o->study.lengths, "Linformer: rows that keys become")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--out", o->out, "Draw error against cost in this file")
      ->type_name("FILE.svg");
  command->add_option("--seed", o->study.seed, "Of the random directions")->capture_default_str();
  o->common.add_to(*command);
  command->callback([&job, o] { job = [o] { run_approx(*o); }; });
}

}  // namespace qkv::cli

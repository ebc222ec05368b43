// qkv study train and qkv study runs: curves of training, side by side.
#include <fmt/format.h>

#include <memory>

#include "io/file.h"
#include "io/shown.h"
#include "output.h"
#include "progress.h"
#include "qkv/study.h"
#include "qkv/threads.h"
#include "study.h"

namespace qkv::cli {
namespace {

struct TrainStudyCommand {
  TrainStudyOptions train;
  std::string rule = "adamw", out;
  int threads = 0;
  bool json = false;
};

void write_report(const std::string& path, const std::string& bytes) {
  write_file_atomically(path, bytes);
  print_err("wrote {}\n", path);
}

void run_train(TrainStudyCommand& o) {
  if (o.threads > 0) set_num_threads(o.threads);
  o.train.rule = optimizer_rule_from_string(o.rule);
  TrainStudy study;
  {
    Progress progress("training");
    o.train.progress = [&](int done, int total) { progress.update(done, total); };
    study = study_train(o.train);
  }
  if (!o.out.empty()) write_report(o.out, to_html(study));
  write_output((o.json ? to_json(study) : to_text(study)) + "\n");
}

struct RunsCommand {
  std::vector<std::string> folders;
  std::string out;
  bool json = false;
};

void run_runs(const RunsCommand& o) {
  const RunsStudy study = study_runs(o.folders);
  if (!o.out.empty()) {
    write_report(o.out, o.out.ends_with(".svg") ? to_svg(study) : to_html(study));
  }
  write_output((o.json ? to_json(study) : shown_text(to_text(study))) + "\n");
}

void add_sizes(CLI::App& train, TrainStudyCommand& command) {
  TrainStudyOptions& o = command.train;
  train.add_option("--layers", o.layers, "Layers")->check(CLI::Range(1, 64))->capture_default_str();
  train.add_option("--heads", o.heads, "Heads of a layer")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  train.add_option("--head-size", o.head_size, "Head size d_k, even")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  train.add_option("--pairs", o.pairs, "Keys and values to remember in a row")
      ->check(CLI::Range(2, 16))
      ->capture_default_str();
  train.add_option("--batch", o.batch, "Rows of a batch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  train.add_option("--optimizer", command.rule, "Optimiser")
      ->check(CLI::IsMember({"adamw", "lion", "sgd"}))
      ->capture_default_str();
  train.add_option("--lr", o.lr, "Its rate, after a warm-up of a tenth of the steps")
      ->check(CLI::Range(1e-9, 10.0))
      ->capture_default_str();
}

}  // namespace

void add_study_train(CLI::App& study, Job& job) {
  CLI::App* train = study.add_subcommand(
      "train", "Why 1/sqrt(d_k)? One small model trained with three scales, curves side by side");
  train->footer(examples("qkv study train --out report.html",
                         "qkv study train --text book.txt --steps 600 --seeds 3 --json"));
  const auto o = std::make_shared<TrainStudyCommand>();
  train->add_option("--steps", o->train.steps, "Steps of each run")
      ->check(CLI::Range(2, 1000000))
      ->capture_default_str();
  train->add_option("--seed", o->train.seed, "Seed of weights and batches")->capture_default_str();
  train->add_option("--seeds", o->train.seeds, "Runs of each scale, each with the next seed")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  train
      ->add_option("--text", o->train.text_file,
                   "Predict the bytes of this file (default: associative recall, drawn)")
      ->type_name("FILE");
  add_sizes(*train, *o);
  train->add_option("--out", o->out, "Write a self-contained HTML report to this file")
      ->type_name("FILE");
  train->add_option("--threads", o->threads, "Threads to use (default: QKV_THREADS, or all cores)")
      ->check(CLI::Range(1, 1024));
  train->add_flag("--json", o->json, "Print one JSON object instead of text");
  train->callback([o, &job] { job = [o] { run_train(*o); }; });
}

void add_study_runs(CLI::App& study, Job& job) {
  CLI::App* runs = study.add_subcommand("runs", "Draw the curves of training runs side by side");
  runs->footer(examples("qkv study runs runs/first runs/second --out curves.svg",
                        "qkv study runs runs/first --out page.html"));
  const auto o = std::make_shared<RunsCommand>();
  runs->add_option("folders", o->folders, "Folders of runs, at most six")
      ->required()
      ->type_name("DIR");
  runs->add_option("--out", o->out,
                   "Write the curves to this file: a page, or where it ends in .svg a drawing of "
                   "loss and largest logit")
      ->type_name("FILE");
  runs->add_flag("--json", o->json, "Print one JSON object instead of a table");
  runs->callback([o, &job] { job = [o] { run_runs(*o); }; });
}

}  // namespace qkv::cli

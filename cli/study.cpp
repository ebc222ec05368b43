// qkv study scale: the claims about 1/sqrt(d_k), measured on this machine.
#include "qkv/study.h"

#include <fmt/format.h>

#include <memory>

#include "io/file.h"
#include "output.h"
#include "progress.h"
#include "study.h"

namespace qkv::cli {
namespace {

struct StudyOptions {
  Common common;
  ScaleStudyOptions scale;
  std::string out;
};

void run_scale(StudyOptions& options) {
  options.common.apply();
  ScaleStudy study;
  {
    Progress progress("studying the scale");
    options.scale.progress = [&](int done, int total) { progress.update(done, total); };
    study = study_scale(options.scale);
  }
  if (!options.out.empty()) {
    write_file_atomically(options.out, to_html(study));
    print_err("wrote {}\n", options.out);
  }
  write_output((options.common.json ? to_json(study) : to_text(study)) + "\n");
}

}  // namespace

void add_study(CLI::App& app, Job& job) {
  const std::string first = "qkv study scale --out report.html";
  const std::string second = "qkv study scale --head-sizes 64,512 --input-variance 2 --json";
  CLI::App* study = app.add_subcommand(
      "study", "Experiments on attention's own statistics, and curves of training");
  study->require_subcommand(1);
  study->footer(examples(first, second));
  CLI::App* scale = study->add_subcommand(
      "scale", "Why 1/sqrt(d_k)? Scores, weights and gradients for three scales, measured");
  scale->footer(examples(first, second));
  const auto options = std::make_shared<StudyOptions>();
  ScaleStudyOptions& o = options->scale;
  scale->add_option("--head-sizes", o.head_sizes, "Head sizes d_k, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  scale->add_option("--keys", o.keys, "Keys n")->check(CLI::Range(2, 16384))->capture_default_str();
  scale->add_option("--queries", o.queries, "Queries per trial")
      ->check(CLI::Range(1, 16384))
      ->capture_default_str();
  scale->add_option("--trials", o.trials, "Independent trials; standard errors come from these")
      ->check(CLI::Range(2, 100000))
      ->capture_default_str();
  scale->add_option("--input-variance", o.input_variance, "Variance s^2 of the entries of q and k")
      ->check(CLI::Range(1e-6, 1000.0))
      ->capture_default_str();
  scale->add_option("--seed", o.seed, "Seed of all random numbers")->capture_default_str();
  scale->add_option("--out", options->out, "Write a self-contained HTML report to this file")
      ->type_name("FILE");
  options->common.add_to(*scale);
  scale->callback([&job, options] { job = [options] { run_scale(*options); }; });
  add_study_approx(*study, job);
  add_study_train(*study, job);
  add_study_runs(*study, job);
}

}  // namespace qkv::cli

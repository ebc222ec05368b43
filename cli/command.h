// What the subcommands share. Each adds itself to the parser and, when chosen, sets the job that
// main runs: results go to standard output, progress and errors to standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "qkv/device.h"

namespace qkv::cli {

using Job = std::function<void()>;  // throws Error when it fails

void add_bench(CLI::App& app, Job& job);
void add_bench_long(CLI::App& bench, Job& job);       // a subcommand of bench
void add_bench_model(CLI::App& bench, Job& job);      // likewise
void add_bench_tokenizer(CLI::App& bench, Job& job);  // likewise
void add_bleu(CLI::App& app, Job& job);
void add_bench_train(CLI::App& bench, Job& job);  // likewise
void add_classify(CLI::App& app, Job& job);
void add_completion(CLI::App& app, Job& job);
void add_encode(CLI::App& app, Job& job);
void add_fill(CLI::App& app, Job& job);
void add_generate(CLI::App& app, Job& job);
void add_help(CLI::App& app, Job& job);
void add_info(CLI::App& app, Job& job);
void add_inspect(CLI::App& app, Job& job);
void add_look(CLI::App& app, Job& job);
void add_perplexity(CLI::App& app, Job& job);
void add_quantize(CLI::App& app, Job& job);
void add_serve(CLI::App& app, Job& job);
void add_study(CLI::App& app, Job& job);
void add_study_approx(CLI::App& study, Job& job);  // a subcommand of study
void add_tokenize(CLI::App& app, Job& job);
void add_tokenizer(CLI::App& app, Job& job);
void add_train(CLI::App& app, Job& job);
void add_translate(CLI::App& app, Job& job);
void add_verify(CLI::App& app, Job& job);

// Options that every subcommand has.
struct Common {
  int threads = 0;  // 0 = the library's default
  bool json = false;
  std::string device = "cpu";

  void add_to(CLI::App& command);
  void apply() const;  // sets the number of threads; Error when the device is not to be had
  Device chosen_device() const;
};

// --target; what it may be depends on the machine, so help and documentation do not list it.
void add_target(CLI::App& command, std::string& target);
// Any number of texts as arguments.
void add_texts(CLI::App& command, std::vector<std::string>& texts);

// Shown at the end of a command's --help.
std::string examples(const std::string& first, const std::string& second);

}  // namespace qkv::cli

// qkv train: a config becomes a run.
#include "qkv/train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "qkv/threads.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

struct TrainCommand {
  std::string config, out, device;
  std::vector<std::string> changes;
  int threads = 0;
  bool resume = false, force = false, json = false;
};

std::string tokens_text(double rate) {
  return rate < 1e4 ? fmt::format("{:.0f}", rate) : fmt::format("{:.1f}k", rate / 1e3);
}

// On a terminal the steps share one line; in a log each report has its own.
class Teller {
 public:
  void step(const StepReport& r) {
    const std::string line = fmt::format(
        "{}/{}  epoch {:.2f}  loss {:.4f}  lr {:.2e}  norm {:.2f}  {} tokens/s  {} left", r.step,
        r.steps, r.epoch, r.loss, r.lr, r.gradient_norm, tokens_text(r.tokens_per_second),
        time_text(r.seconds_left));
    if (!terminal_) {
      print_err("{}\n", line);
    } else {
      std::fputs("\r\x1b[K", stderr);
      print_err("{} {}", bar_text(r.step, r.steps), line);
      drawn_ = true;
    }
    for (const std::string& warning : r.warnings) note("step {}: {}", r.step, warning);
  }
  void evaluation(const Evaluation& e) {
    std::string line = fmt::format("step {}: loss {:.4f}, perplexity {:.2f}, accuracy {:.1f} %",
                                   e.step, e.loss, e.perplexity, 100 * e.accuracy);
    if (e.bleu) line += fmt::format(", BLEU {:.2f}", *e.bleu);
    note("{}{}", line, e.is_best ? " (best)" : "");
    for (const Evaluation::Sample& s : e.samples) note("  {} => {}", s.source, s.output);
  }
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
    print_err("{}\n", fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1, drawn_ = false;
};

// As a shell reads it back.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+%@";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// A path that begins like an option must not be taken for one.
std::string quoted_path(const std::string& path) {
  return quoted(path.starts_with('-') ? "./" + path : path);
}

// The same command, to go on with.
std::string resume_command(const TrainCommand& o) {
  std::string text = "qkv train " + quoted_path(o.config);
  if (!o.changes.empty()) text += " --set";
  for (const std::string& change : o.changes) text += " " + quoted(change);
  if (!o.out.empty()) text += " --out " + quoted_path(o.out);
  if (!o.device.empty()) text += " --device " + quoted(o.device);
  if (o.threads > 0) text += fmt::format(" --threads {}", o.threads);
  if (o.json) text += " --json";
  return text + " --resume";
}

void print_result(const TrainCommand& o, const TrainConfig& config, const TrainResult& result) {
  if (o.json) {
    ordered_json json{{"steps", result.steps},
                      {"finished", result.finished},
                      {"out", config.out},
                      {"model", result.model}};
    if (!result.finished) json["resume"] = resume_command(o);
    if (result.best) {
      json["best"] = {{"step", result.best->step}, {"loss", result.best->loss}};
      if (result.best->bleu) json["best"]["bleu"] = *result.best->bleu;
    }
    return print_json(json);
  }
  if (result.finished) return write_output(fmt::format("the model is in {}\n", result.model));
  write_output(fmt::format("stopped after step {}, saved in {}\ngo on with: {}\n", result.steps,
                           result.model, resume_command(o)));
}

void run_train(const TrainCommand& o) {
  if (o.threads > 0) set_num_threads(o.threads);
  std::vector<std::string> changes = o.changes;
  if (!o.device.empty()) changes.push_back("device=\"" + o.device + "\"");
  TrainConfig config = read_train_config(o.config, changes);
  if (!o.out.empty()) config.out = o.out;
  watch_interrupts();
  Teller teller;
  Progress tokenising("tokenising");
  TrainEvents events;
  events.on_note = [&](const std::string& text) { teller.note("{}", text); };
  events.on_tokenising = [&](std::int64_t done, std::int64_t total) {
    constexpr std::int64_t kUnit = 1 << 10;  // bytes; the bar counts in int
    tokenising.update(static_cast<int>(done / kUnit), static_cast<int>(total / kUnit));
  };
  events.on_step = [&](const StepReport& report) { teller.step(report); };
  events.on_evaluation = [&](const Evaluation& e) { teller.evaluation(e); };
  events.should_stop = [] { return interrupted(); };
  Trainer trainer(config, events, o.resume, o.force);
  print_result(o, config, trainer.run());
}

}  // namespace

void add_train(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("train", "Train a model as a config says");
  command->footer(examples("qkv train translate.json --out runs/first",
                           "qkv train lm.json --set optimizer.lr=0.001 steps=500 --out runs/lm"));
  const auto o = std::make_shared<TrainCommand>();
  command->add_option("config", o->config, "The config (docs/training.md lists its keys)")
      ->required()
      ->type_name("FILE");
  command->add_option("--out", o->out, "The run's folder (default: \"out\" in the config)")
      ->type_name("DIR");
  command->add_option("--set", o->changes, "Change keys of the config: optimizer.lr=0.001")
      ->type_name("KEY=VALUE");
  CLI::Option* resume =
      command->add_flag("--resume", o->resume, "Go on where the run in the folder stopped");
  command
      ->add_flag("--force", o->force,
                 "Go on although data, tokenizer or config differ, or checksums are wrong")
      ->needs(resume);
  command->add_option("--device", o->device, "Where to train (default: as the config says)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--threads", o->threads, "Threads to use (default: all cores)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", o->json, "Print the result as one JSON object");
  command->callback([o, &job] { job = [o] { run_train(*o); }; });
}

}  // namespace qkv::cli

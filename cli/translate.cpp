// qkv translate: text to English, by the model that comes with qkv or by another.
#include "qkv/translate.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "default_model.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

struct TranslateCommand {
  Common common;
  std::string model, from, dtype;
  std::vector<std::string> texts;
  TranslateOptions options;
  bool quiet = false;
};

std::string prefix_of(const std::string& from, const Tokenizer& tokenizer) {
  if (from.empty()) return "";
  for (const std::string& token : {"<" + from + ">", ">>" + from + "<<"}) {
    if (tokenizer.id(token)) return token;
  }
  fail(
      "--from {}: the model's tokenizer has no token <{}>; leave --from out, the model finds out "
      "by itself",
      from, from);
}

void run_translate(TranslateCommand& o) {
  o.common.apply();
  if (o.model.empty()) o.model = default_model();
  LoadOptions load{.device = o.common.chosen_device()};
  if (!o.dtype.empty()) load.dtype = dtype_from_string(o.dtype);
  const std::unique_ptr<Model> model = load_model(o.model, load);
  const Tokenizer tokenizer = Tokenizer::load(o.model);
  o.options.prefix = prefix_of(o.from, tokenizer);
  if (o.texts.empty()) o.texts = read_input_lines("a sentence a line");
  watch_interrupts(kInterruptSeconds);
  const auto start = std::chrono::steady_clock::now();
  Progress progress("translating");
  o.options.on_batch = [&](std::size_t done, std::size_t total) {
    progress.update(static_cast<int>(done), static_cast<int>(total));
    return !interrupted();
  };
  o.options.on_step = [] { return !interrupted(); };
  const std::vector<std::string> outputs = translate(*model, tokenizer, o.texts, o.options);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (o.common.json) {
    ordered_json list = ordered_json::array();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      list.push_back({{"source", o.texts[i]}, {"translation", outputs[i]}});
    }
    return print_json({{"model", o.model}, {"seconds", seconds.count()}, {"translations", list}});
  }
  std::string all;
  for (const std::string& output : outputs) all += output + "\n";
  write_output(all);
  if (!o.quiet && outputs.size() > 1) {
    print_err("{} sentences in {:.1f} s, {:.0f} a minute\n", outputs.size(), seconds.count(),
              60 * static_cast<double>(outputs.size()) / seconds.count());
  }
}

}  // namespace

void add_translate(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand(
      "translate", "Translate French, German or Spanish into English (or as --model does)");
  command->footer(examples("qkv translate \"Le chat s'est assis sur le tapis.\"",
                           "qkv translate --from de < sentences.txt"));
  const auto o = std::make_shared<TranslateCommand>();
  o->common.add_to(*command);
  add_texts(*command, o->texts);
  command->add_option("--model", o->model, "An encoder-decoder (default: the one that comes along)")
      ->type_name("DIR");
  command->add_option("--from", o->from,
                      "The language of the texts: fr, de, es (default: found out)");
  command->add_option("--beams", o->options.beams, "Beams of the search; 1 is greedy")
      ->check(CLI::Range(1, 64))
      ->default_str("as the model says, else 4");
  command->add_option("--length-penalty", o->options.length_penalty, "> 1 favours long sentences")
      ->check(CLI::Range(0.0, 10.0))
      ->default_str("as the model says, else 1");
  command->add_option("--dtype", o->dtype, "Convert the weights first: f32, bf16, f16 or i8")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "i8"}));
  command->add_flag("--quiet", o->quiet, "Do not tell how fast it was");
  command->callback([o, &job] { job = [o] { run_translate(*o); }; });
}

}  // namespace qkv::cli

// qkv generate: what a model says to a prompt, shown as it comes.
#include "qkv/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "core/check.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "replies.h"
#include "text_model.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

struct GenerateCommand {
  Common common;
  ModelOptions model;
  GenerateOptions options;
  std::string prompt, kv_dtype;
  std::vector<std::string> stops;
  std::size_t batch = 8;
  bool has_prompt = false, ids = false, lines = false, echo = false, quiet = false;
};

ordered_json to_json(const Reply& reply) {
  return {{"prompt", reply.prompt},
          {"text", reply.text},
          {"prompt_ids", reply.prompt_ids},
          {"ids", reply.ids},
          {"ended", reply.ended}};
}

ordered_json to_json(const ReplyTimes& times) {
  return {{"prompt_tokens", times.prompt_tokens},
          {"new_tokens", times.new_tokens},
          {"prompt_seconds", times.prompt_seconds},
          {"seconds_after_first", times.seconds_after_first},
          {"prompt_tokens_per_s", times.prompt_rate()},
          {"tokens_per_s", times.rate()}};
}

void print_times(const ReplyTimes& times, const std::string& ended) {
  const auto part = [](std::int64_t count, const char* what, double rate) {
    const std::string pace = rate > 0 ? fmt::format(" at {:.1f} tokens/s", rate) : "";
    return fmt::format("{} {} token{}{}", count, what, count == 1 ? "" : "s", pace);
  };
  std::string text = part(times.prompt_tokens, "prompt", times.prompt_rate()) + ", " +
                     part(times.new_tokens, "new", times.rate());
  if (ended == "positions") text += ", until the positions of the model were used up";
  if (ended == "interrupt") text += ", interrupted";
  print_err("{}\n", text);
}

// A reply of several lines still takes one.
std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) line += c == '\n' ? "\\n" : std::string(1, c);
  return line + "\n";
}

// One prompt, told as it comes.
void reply_to_one(const GenerateCommand& c, Replier& replier) {
  std::string prompt = c.prompt;
  if (!c.has_prompt) {
    prompt = read_input("the prompt");
    while (prompt.ends_with('\n') || prompt.ends_with('\r')) prompt.pop_back();
  }
  watch_interrupts(kInterruptSeconds);  // not before: Ctrl-C in place of a prompt ends everything
  if (c.common.json) {
    ordered_json json = to_json(replier({prompt}).front());
    json["timings"] = to_json(replier.times());
    print_json(json);
    return;
  }
  const std::string separator = c.ids ? " " : "";
  if (c.echo) write_output(prompt + separator);
  const Reply reply = replier({prompt}, write_output).front();
  if (!reply.text.ends_with('\n')) write_output("\n");
  if (!c.quiet) print_times(replier.times(), reply.ended);
}

// Many prompts, several at once; what is answered is written before the next are read.
void reply_to_lines(const GenerateCommand& c, Replier& replier) {
  check(!c.has_prompt, "--lines reads the prompts from standard input; leave the prompt out");
  const std::vector<std::string> prompts = read_input_lines("a prompt per line");
  watch_interrupts(kInterruptSeconds);
  ordered_json results = ordered_json::array();
  std::string ended;
  Progress progress("generating");
  for (std::size_t at = 0; at < prompts.size() && !interrupted(); at += c.batch) {
    const auto begin = prompts.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t count = std::min(c.batch, prompts.size() - at);
    for (const Reply& reply : replier({begin, begin + static_cast<std::ptrdiff_t>(count)})) {
      ended = reply.ended;
      if (c.common.json) {
        results.push_back(to_json(reply));
      } else {
        const std::string separator = c.ids ? " " : "";
        write_output(on_one_line((c.echo ? reply.prompt + separator : "") + reply.text));
      }
    }
    progress.update(static_cast<int>(at + count), static_cast<int>(prompts.size()));
  }
  if (c.common.json) {
    print_json({{"results", results}, {"timings", to_json(replier.times())}});
  } else if (!c.quiet) {
    print_times(replier.times(), ended == "interrupt" ? ended : "");
  }
}

void run_generate(const GenerateCommand& c) {
  c.common.apply();
  const std::unique_ptr<Model> model = open_model(c.model, Task::generate, c.common);
  const std::unique_ptr<Codec> codec = make_codec(c.model.folder, model->info(), c.ids);
  GenerateOptions options = c.options;
  if (!c.kv_dtype.empty()) options.kv_dtype = dtype_from_string(c.kv_dtype);
  Replier replier(*model, *codec, options, c.stops);
  if (c.lines) {
    reply_to_lines(c, replier);
  } else {
    reply_to_one(c, replier);
  }
}

// What is not given is decided by the model, then by the default, which help shows.
template <class T, class Check>
void add_choice(CLI::App& command, const char* name, std::optional<T>& value, const Check& range,
                const char* description, const char* otherwise) {
  command.add_option(name, value, description)
      ->check(range)
      ->default_str(fmt::format("as the model says, else {}", otherwise));
}

void add_choices(CLI::App& command, GenerateOptions& o) {
  const CLI::Range tokens(0, 1 << 24), share(0.0, 1.0);
  add_choice(command, "--max-tokens", o.max_new_tokens, tokens, "New tokens at most", "64");
  add_choice(command, "--min-tokens", o.min_new_tokens, tokens, "New tokens before an end", "0");
  add_choice(command, "--temperature", o.temperature, CLI::Range(0.0, 100.0),
             "0 takes the likeliest token, 1 draws fairly", "0");
  add_choice(command, "--top-k", o.top_k, tokens, "Draw from the k likeliest; 0 = from all", "0");
  add_choice(command, "--top-p", o.top_p, share, "Draw from the likeliest that together reach this",
             "1");
  add_choice(command, "--min-p", o.min_p, share, "Draw from those with this share of the likeliest",
             "0");
  add_choice(command, "--repetition-penalty", o.repetition_penalty,
             CLI::Range(kMinPenalty, kMaxPenalty), "Above 1 makes what occurred less likely", "1");
  add_choice(command, "--no-repeat-ngram", o.no_repeat_ngram_size, tokens,
             "Never the same so many tokens in a row twice; 0 = any", "0");
  command.add_option("--seed", o.seed, "Of what is drawn: the same seed, the same text")
      ->capture_default_str();
  add_choice(command, "--beams", o.beams, CLI::Range(1, static_cast<int>(kMaxBeams)),
             "Above 1: beam search, shown when it is over", "1");
  add_choice(command, "--length-penalty", o.length_penalty,
             CLI::Range(-kMaxLengthPenalty, kMaxLengthPenalty), "Above 1 favours longer beams",
             "1");
}

}  // namespace

void add_generate(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a text, or answer it; shown as it comes");
  command->footer(examples("qkv generate path/to/stories15m 'Once upon a time' --max-tokens 200",
                           "qkv generate path/to/gpt2-sort --ids '2 0 1 0 2 1' --max-tokens 6"));
  const auto c = std::make_shared<GenerateCommand>();
  c->model.add_to(*command);
  CLI::Option* prompt =
      command->add_option("prompt", c->prompt, "What to continue (default: standard input)");
  add_choices(*command, c->options);
  command
      ->add_option("--stop", c->stops,
                   "End before this text, or after this special token; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--kv-dtype", c->kv_dtype, "Of the cache: bf16 or i8 (default: as computed)")
      ->check(CLI::IsMember({"bf16", "i8"}));
  command->add_flag("--ids", c->ids, "Prompt and reply are token ids: no tokenizer needed");
  command->add_flag("--lines", c->lines, "Every line of standard input is a prompt of its own");
  command->add_option("--batch", c->batch, "Lines to answer at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_flag("--echo", c->echo, "Print the prompt in front of the reply");
  command->add_flag("--quiet", c->quiet, "Say nothing about speed");
  c->common.add_to(*command);
  command->callback([&job, c, prompt] {
    c->has_prompt = prompt->count() > 0;
    job = [c] { run_generate(*c); };
  });
}

}  // namespace qkv::cli

// qkv look: what a model attends to, as a page, as a table or as JSON.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "command.h"
#include "core/check.h"
#include "interrupt.h"
#include "io/file.h"
#include "look_model.h"
#include "output.h"

namespace qkv::cli {
namespace {

struct LookCommand {
  Common common;
  ModelOptions model;
  LookOptions options;
  PictureSelection selection;
  std::string text, target, out;
  std::int64_t layer = 0, head = 0;
  std::size_t megabytes = 24;
  bool has_text = false, ids = false, no_color = false;
};

// Colours for people at a terminal who did not ask to be spared (no-color.org).
bool wants_color(const LookCommand& c) {
  const char* spared = std::getenv("NO_COLOR");
  return !c.no_color && (spared == nullptr || *spared == '\0') && ::isatty(STDOUT_FILENO) == 1;
}

std::int64_t terminal_columns() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::clamp<std::int64_t>(size.ws_col, 40, 400) : 120;
}

void run_look(const LookCommand& c) {
  c.common.apply();
  std::string text = c.text;
  if (!c.has_text) {
    text = read_input("the text");
    while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  }
  const LookModel model(c.model, c.common, c.ids);
  watch_interrupts(kInterruptSeconds);
  LookOptions options = c.options;
  options.on_step = [] { return !interrupted(); };
  const AttentionPicture picture = model(text, c.target, options);
  if (!c.out.empty()) {
    const PageOptions page{.title = model.name(),
                           .limit = c.megabytes << 20,
                           .layer = c.selection.layer,
                           .head = c.selection.head};
    const std::string html = to_html(picture, page);
    write_file_atomically(c.out, html);
    print_err("wrote {} ({:.1f} MB); open it in a browser\n", c.out, html.size() / 1e6);
  }
  if (c.common.json) {
    write_output(to_json(picture, c.selection) + "\n");
  } else {
    write_raw_output(to_text(picture, {c.selection, wants_color(c), terminal_columns()}));
  }
}

void add_selection(CLI::App& command, LookCommand& c) {
  command.add_option("--map", c.selection.map, "Which attention (default: cross, where there is)")
      ->check(CLI::IsMember({"encoder", "decoder", "cross"}));
  command.add_option("--layer", c.layer, "Layer, from 0 (default: the last)")
      ->check(CLI::Range(0, 1 << 12));
  command.add_option("--head", c.head, "Head, from 0 (default: the mean of all)")
      ->check(CLI::Range(0, 1 << 14));
  command.add_option("--row", c.selection.rows, "Only these rows, comma-separated")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 30));
}

}  // namespace

void add_look(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("look", "Show what each token of a text attends to");
  command->footer(
      examples("qkv look \"Le chat s'est assis sur le tapis.\" --out page.html",
               "qkv look 'Once upon a time' --model path/to/stories15m --generate 20 --layer 3"));
  const auto c = std::make_shared<LookCommand>();
  CLI::Option* text =
      command->add_option("text", c->text, "What the model reads (default: standard input)");
  c->model.add_named_to(*command);
  command->add_option("--out", c->out, "Write a page that needs nothing else to this file")
      ->type_name("FILE");
  command
      ->add_option("--target", c->target,
                   "Of a model that reads and writes: what it is to write (default: its own)")
      ->type_name("TEXT");
  command
      ->add_option("--generate", c->options.new_tokens,
                   "Let the model go on by so many tokens, or write so many at most")
      ->check(CLI::Range(0, 1 << 24));
  command->add_option("--beams", c->options.beams, "Above 1: write by beam search")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_selection(*command, *c);
  command
      ->add_option("--page-limit", c->megabytes,
                   "Megabytes of data in the page: what is longer is pooled")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--ids", c->ids, "The text is token ids: no tokenizer needed");
  command->add_flag("--no-color", c->no_color, "Plain characters, as in a file or a pipe");
  c->common.add_to(*command);
  command->callback([&job, c, command, text] {
    c->has_text = text->count() > 0;
    if (command->count("--layer") > 0) c->selection.layer = c->layer;
    if (command->count("--head") > 0) c->selection.head = c->head;
    job = [c] { run_look(*c); };
  });
}

}  // namespace qkv::cli

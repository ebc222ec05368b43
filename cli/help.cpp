// qkv help: the help of a command, or of all of them as the page docs/cli.md.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "command_tree.h"
#include "core/check.h"
#include "nearest.h"
#include "output.h"

namespace qkv::cli {
namespace {

struct HelpCommand {
  std::vector<std::string> words;
  bool markdown = false;
};

// Plain text: a bar would end the cell of a table, <mask> would be taken for HTML.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '_' || c == '[') result += '\\';
    result += c;
  }
  return result;
}

std::string usage(const CommandSpec& command) {
  std::string text = "qkv" + (command.path.empty() ? "" : " " + command.path);
  for (const OptionSpec& argument : command.arguments) {
    const std::string name = argument.name + (argument.is_repeated ? "..." : "");
    text += " " + (argument.is_required ? name : "[" + name + "]");
  }
  if (!command.commands.empty()) text += " COMMAND";
  return text + (command.options.empty() ? "" : " [options]");
}

std::string meaning(const OptionSpec& option) {
  std::string text = option.description;
  if (!option.default_value.empty()) text += fmt::format(" (default: {})", option.default_value);
  return text;
}

std::string table_of_options(const CommandSpec& command) {
  std::string table = "| option | meaning |\n| --- | --- |\n";
  for (const OptionSpec& argument : command.arguments) {
    table += fmt::format("| `{}` | {} |\n", argument.name, plain(meaning(argument)));
  }
  for (const OptionSpec& option : command.options) {
    std::string value = option.value;
    if (!option.choices.empty()) value = fmt::format("{}", fmt::join(option.choices, "\\|"));
    const std::string names =
        (option.short_name.empty() ? "" : option.short_name + ", ") + option.name;
    table += fmt::format("| `{}{}{}` | {} |\n", names, value.empty() ? "" : " ", value,
                         plain(meaning(option)));
  }
  return table;
}

std::string section(const CommandSpec& command) {
  const std::string heading = command.path.empty() ? "qkv" : "qkv " + command.path;
  std::string text = fmt::format(
      "\n## {}\n\n{}\n\n", heading,
      command.description.ends_with('.') ? command.description : command.description + ".");
  std::string lines = usage(command) + "\n";
  const std::string title = "Examples:\n";
  if (const std::size_t at = command.footer.find(title); at != std::string::npos) {
    lines += "\n";
    for (const std::string& line :
         CLI::detail::split(command.footer.substr(at + title.size()), '\n'))
      lines += CLI::detail::trim_copy(line) + "\n";
  }
  text += fmt::format("```sh\n{}```\n\n", lines);
  if (!command.commands.empty()) {
    text += "| command | what it does |\n| --- | --- |\n";
    for (const CommandSpec& inner : command.commands) {
      std::string anchor = "qkv-" + inner.path;
      for (char& c : anchor) c = c == ' ' ? '-' : c;
      text += fmt::format("| [`{}`](#{}) | {} |\n", inner.name, anchor, plain(inner.description));
    }
    text += "\n";
  }
  return text + table_of_options(command);
}

std::string markdown(const CommandSpec& root) {
  std::string text =
      "# The qkv command\n\n"
      "<!-- Written by `make docs` from the program's own help; a test fails when it is stale. "
      "-->\n\n"
      "Results go to standard output, progress and errors to standard error. Exit status:\n"
      "0 it worked, 1 it failed, 2 it was called wrongly, 130 Ctrl-C ended it, 143 SIGTERM did.\n"
      "A model is a folder as Hugging Face writes it; [models.md](models.md) says which.\n"
      "`qkv completion` writes completion for bash, zsh and fish.\n";
  for (const CommandSpec* command : flattened(root)) text += section(*command);
  return text;
}

void run_help(const HelpCommand& help, CLI::App& app) {
  if (help.markdown) {
    write_output(markdown(command_tree(app)));
    return;
  }
  CLI::App* command = &app;
  std::string name = app.get_name();
  for (const std::string& word : help.words) {
    const auto is_named = [&](const CLI::App* inner) { return inner->get_name() == word; };
    const std::string near = nearest(word, command_names(*command));
    const auto found = command->get_subcommands([&](CLI::App* inner) { return is_named(inner); });
    check(!found.empty(), "there is no command {}{}", word,
          near.empty() ? "; `qkv help` lists them" : "; did you mean " + near + "?");
    command = found.front();
    name += " " + word;
  }
  // app.help() would be that of the command that was called, which is this one.
  write_output(command->get_formatter()->make_help(command, name, CLI::AppFormatMode::Normal));
}

}  // namespace

void add_help(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("help", "Show the help of a command");
  command->footer(examples("qkv help generate", "qkv help --markdown"));
  const auto help = std::make_shared<HelpCommand>();
  command->add_option("command", help->words, "The command, for example bench model");
  command->add_flag("--markdown", help->markdown, "All commands as one page of Markdown");
  command->callback([&job, &app, help] { job = [&app, help] { run_help(*help, app); }; });
}

}  // namespace qkv::cli

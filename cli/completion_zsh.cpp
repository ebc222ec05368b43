// A function for each command: one with subcommands describes them, the others list arguments.
#include <fmt/format.h>

#include "completion.h"

namespace qkv::cli {
namespace {

// Colons and brackets separate the parts of a specification.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string function_of(const CommandSpec& command) {
  std::string name = "_qkv" + (command.path.empty() ? "" : "_" + command.path);
  for (char& c : name) c = c == ' ' ? '_' : c;
  return name;
}

std::string action(const OptionSpec& option) {
  switch (offer_for(option)) {
    case Offer::choices: return fmt::format("({})", fmt::join(option.choices, " "));
    case Offer::folders: return "_files -/";
    case Offer::files: return "_files";
    default: return " ";
  }
}

std::string specification(const OptionSpec& option) {
  std::string text = fmt::format("{}{}[{}]", option.is_repeated ? "*" : "", option.name,
                                 escaped(option.description));
  if (!option.value.empty()) text += fmt::format(":{}:{}", escaped(option.value), action(option));
  return shell_quoted(text);
}

std::string leaf(const CommandSpec& command) {
  std::string text = fmt::format("{}() {{\n  _arguments", function_of(command));
  for (const OptionSpec& option : command.options) text += " \\\n    " + specification(option);
  int place = 1;
  for (const OptionSpec& argument : command.arguments) {
    const std::string where = argument.is_repeated ? "*" : std::to_string(place++);
    text += " \\\n    " +
            shell_quoted(fmt::format("{}:{}:{}", where, escaped(argument.name), action(argument)));
  }
  return text + "\n}\n";
}

std::string group(const CommandSpec& command) {
  std::string described, cases;
  for (const CommandSpec& inner : command.commands) {
    described += "    " + shell_quoted(inner.name + ":" + escaped(inner.description)) + "\n";
    cases += fmt::format("    {}) {} ;;\n", inner.name, function_of(inner));
  }
  return fmt::format(
      "{}() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $words[1] in\n{}  esac\n"
      "}}\n",
      function_of(command), described, cases);
}

}  // namespace

std::string zsh_completion(const CommandSpec& root) {
  std::string text =
      "#compdef qkv\n# Completion of qkv for zsh, written by `qkv completion zsh`.\n";
  for (const CommandSpec* command : flattened(root)) {
    text += command->commands.empty() ? leaf(*command) : group(*command);
  }
  // Run when autoloaded from $fpath; else registered by whoever sourced it.
  return text +
         "if [[ $funcstack[1] == _qkv ]]; then\n  _qkv \"$@\"\nelse\n  compdef _qkv qkv\nfi\n";
}

}  // namespace qkv::cli

// A line for each option, under the condition that its command has been typed.
#include <fmt/format.h>

#include "completion.h"

namespace qkv::cli {
namespace {

std::string text_of(const std::string& text) { return shell_quoted(text, "\\'"); }

std::string offer(const OptionSpec& option) {
  switch (offer_for(option)) {
    case Offer::choices: return fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
    case Offer::folders: return " -x -a '(__fish_complete_directories)'";
    case Offer::files: return " -r -F";
    default: return " -x";
  }
}

}  // namespace

std::string fish_completion(const CommandSpec& root) {
  std::string steps, lines;
  for (const CommandSpec* command : flattened(root)) {
    const std::string start = fmt::format("complete -c qkv -n '__qkv_at \"{}\"'", command->path);
    for (const CommandSpec& inner : command->commands) {
      steps += fmt::format("      case '{}:{}'\n        set command '{}'\n", command->path,
                           inner.name, inner.path);
      lines += fmt::format("{} -a {} -d {}\n", start, inner.name, text_of(inner.description));
    }
    for (const OptionSpec& option : command->options) {
      lines += fmt::format("{} -l {}{} -d {}\n", start, option.name.substr(2),
                           option.value.empty() ? "" : offer(option), text_of(option.description));
    }
    if (!command->arguments.empty()) {
      const OptionSpec& first = command->arguments.front();
      const Offer kind = offer_for(first);
      if (kind == Offer::files) lines += start + " -F\n";
      if (kind == Offer::folders || kind == Offer::choices) {
        lines += start + offer(first).substr(3) + "\n";
      }
    }
  }
  return "# Completion of qkv for fish, written by `qkv completion fish`.\n"
         "function __qkv_at\n"
         "  set -l command ''\n"
         "  for word in (commandline -opc)[2..-1]\n"
         "    switch \"$command:$word\"\n" +
         steps +
         "    end\n"
         "  end\n"
         "  test \"$command\" = \"$argv\"\n"
         "end\n"
         "complete -c qkv -f\n" +
         lines;
}

}  // namespace qkv::cli

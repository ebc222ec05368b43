// Two tables in one function: what may follow an option, and what a command has.
#include <fmt/format.h>

#include "completion.h"

namespace qkv::cli {
namespace {

std::string reply(const OptionSpec& option) {
  switch (offer_for(option)) {
    case Offer::choices:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$word\"))",
                         fmt::join(option.choices, " "));
    case Offer::folders: return "_qkv_paths -d";
    case Offer::files: return "_qkv_paths -f";
    default: return "COMPREPLY=()";
  }
}

std::string value_cases(const CommandSpec& command) {
  std::string cases;
  for (const OptionSpec& option : command.options) {
    if (option.value.empty()) continue;
    cases += fmt::format("    '{}:{}') {}; return ;;\n", command.path, option.name, reply(option));
  }
  return cases;
}

// Options where a dash was typed; else subcommands, or what the first argument may be.
std::string command_case(const CommandSpec& command) {
  std::vector<std::string> options, names;
  for (const OptionSpec& option : command.options) options.push_back(option.name);
  for (const CommandSpec& inner : command.commands) names.push_back(inner.name);
  std::string otherwise = "COMPREPLY=()";
  if (!names.empty()) {
    otherwise = fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$word\"))", fmt::join(names, " "));
  } else if (!command.arguments.empty()) {
    otherwise = reply(command.arguments.front());
  }
  return fmt::format(
      "    '{}')\n"
      "      if [[ $word == -* ]]; then\n"
      "        COMPREPLY=($(compgen -W '{}' -- \"$word\"))\n"
      "      else\n"
      "        {}\n"
      "      fi ;;\n",
      command.path, fmt::join(options, " "), otherwise);
}

}  // namespace

std::string bash_completion(const CommandSpec& root) {
  std::string steps, values, commands;
  for (const CommandSpec* command : flattened(root)) {
    for (const CommandSpec& inner : command->commands) {
      steps +=
          fmt::format("      '{}:{}') command='{}' ;;\n", command->path, inner.name, inner.path);
    }
    values += value_cases(*command);
    commands += command_case(*command);
  }
  return "# Completion of qkv for bash, written by `qkv completion bash`.\n"
         "_qkv_paths() {\n"
         "  local IFS=$'\\n'\n"
         "  compopt -o filenames 2> /dev/null\n"
         "  COMPREPLY=($(compgen \"$1\" -- \"$word\"))\n"
         "}\n"
         "_qkv() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} command='' i\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    case \"$command:${COMP_WORDS[i]}\" in\n" +
         steps +
         "    esac\n"
         "  done\n"
         "  case \"$command:${COMP_WORDS[COMP_CWORD - 1]}\" in\n" +
         values +
         "  esac\n"
         "  case \"$command\" in\n" +
         commands +
         "  esac\n"
         "}\n"
         "complete -F _qkv qkv\n";
}

}  // namespace qkv::cli

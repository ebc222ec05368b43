// The program's commands and options as data: what help, documentation and shell completion say is
// read from the parser itself.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace qkv::cli {

struct OptionSpec {
  std::string name;        // "--top-k", or of an argument "model"
  std::string short_name;  // "-h" or ""
  std::string description, default_value;
  std::string value;                 // "INT", "DIR", "FILE"; "" for a flag
  std::vector<std::string> choices;  // when only these are accepted
  bool is_required = false, is_repeated = false;
};

struct CommandSpec {
  std::string path;  // "bench model"; "" is the program
  std::string name;  // "model"
  std::string description, footer;
  std::vector<OptionSpec> options, arguments;
  std::vector<CommandSpec> commands;
};

CommandSpec command_tree(const CLI::App& app);

std::vector<std::string> command_names(const CLI::App& app);  // of its subcommands

// Every command with its subcommands behind it, the program first.
std::vector<const CommandSpec*> flattened(const CommandSpec& root);

}  // namespace qkv::cli

// qkv completion: the script for one shell, on standard output.
#include "completion.h"

#include <memory>

#include "command.h"
#include "output.h"

namespace qkv::cli {

Offer offer_for(const OptionSpec& option) {
  if (!option.choices.empty()) return Offer::choices;
  if (option.value == "DIR") return Offer::folders;
  if (option.value == "FILE") return Offer::files;
  return Offer::nothing;
}

std::string shell_quoted(const std::string& text, const std::string& escaped_quote) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? escaped_quote : std::string(1, c);
  return result + "'";
}

void add_completion(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("completion", "Write a script that completes qkv's command line");
  command->footer(examples("qkv completion bash > ~/.local/share/bash-completion/completions/qkv",
                           "qkv completion fish > ~/.config/fish/completions/qkv.fish"));
  const auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "The shell that will read it")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([&job, &app, shell] {
    job = [&app, shell] {
      const CommandSpec root = command_tree(app);
      write_output(*shell == "bash"  ? bash_completion(root)
                   : *shell == "zsh" ? zsh_completion(root)
                                     : fish_completion(root));
    };
  });
}

}  // namespace qkv::cli

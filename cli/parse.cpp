#include "parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "command_tree.h"
#include "nearest.h"
#include "value_checks.h"

namespace qkv::cli {
namespace {

constexpr char kShield = '\x1f';  // put behind a text CLI11 would misread, and taken off again

std::string unshielded(const std::string& text) {
  return text.ends_with(kShield) ? text.substr(0, text.size() - 1) : text;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() != 0; }

// Before what CLI11 checks itself, which then sees numbers in one form only.
void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (!takes_value(*option)) continue;
    option->transform([rule = value_rule(option->get_type_name())](const std::string& text) {
      return checked_value(rule, unshielded(text));
    });
  }
  for (CLI::App* inner : app.get_subcommands([](CLI::App*) { return true; })) check_values(*inner);
}

// CLI11 would see a list in a text in [brackets], and take the next word where nothing follows
// --option= (an empty variable of a shell script).
std::string shielded(const std::string& word) {
  const bool is_bracketed = word.starts_with('[') && word.ends_with(']');
  const bool is_empty_value = word.starts_with("--") && word.find('=') == word.size() - 1;
  return is_bracketed || is_empty_value ? word + kShield : word;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "-5" and "-" are arguments.
bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

enum class Unknown { commands, commands_and_options };

// Why the first word that means nothing means nothing, or "".
std::string first_unknown(const CLI::App& app, const std::vector<std::string>& words,
                          Unknown wanted) {
  const CLI::App* at = &app;
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const std::string& word = words[i];
    if (is_option(word)) {
      const std::string name = word.substr(0, word.find('='));
      const std::vector<std::string> names = option_names(*at);
      if (contains(names, name)) {
        i += takes_value(*at->get_option(name)) && name == word ? 1 : 0;
      } else if (wanted == Unknown::commands_and_options) {
        const std::string hint = advice(name, names);
        const bool is_text = hint.empty() && !word.starts_with("--") && command_names(*at).empty();
        return "there is no option " + name +
               (is_text ? "; a text that begins with - is put behind --" : hint);
      }
      continue;
    }
    const std::vector<std::string> names = command_names(*at);
    if (names.empty()) continue;  // an argument
    if (!contains(names, word)) {
      return "there is no command " + (word.empty() ? "''" : word) + advice(word, names);
    }
    at = at->get_subcommand(word);
  }
  return "";
}

// CLI11's words for what people do most often wrong, in ours.
std::string plain_words(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  text.erase(std::remove(text.begin(), text.end(), kShield), text.end());
  const std::size_t colon = text.find(": ");
  const std::string name = text.substr(0, colon);
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ArgumentMismatch: {
      if (text.ends_with(" missing")) return name + ": a value is missing";
      const std::string many = ": At Most 1 required but received ";
      const std::size_t at = text.find(many);
      if (at == std::string::npos) break;
      return name + ": one value is expected, got " + text.substr(at + many.size());
    }
    case CLI::ExitCodes::ConversionError: {  // of a flag: values are checked before
      const std::size_t equals = text.find(" = ");
      if (colon == std::string::npos || equals == std::string::npos || equals < colon) break;
      return text.substr(colon + 2, equals - colon - 2) + ": a flag takes no value";
    }
    case CLI::ExitCodes::ExtrasError: {
      const std::vector<std::string> rest = app.remaining(true);
      if (!rest.empty()) return "one argument too many: " + unshielded(rest.front());
      break;
    }
    default: break;
  }
  return text == "A subcommand is required" ? "a command is missing" : text;
}

}  // namespace

void parse(CLI::App& app, int argc, const char* const* argv) {
  check_values(app);
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> backwards;  // as CLI11 wants them
  for (const std::string& word : words) backwards.push_back(shielded(word));
  std::reverse(backwards.begin(), backwards.end());
  try {
    app.parse(backwards);
  } catch (const CLI::CallForHelp&) {
    const std::string reason = first_unknown(app, words, Unknown::commands);
    if (reason.empty()) throw;
    throw CLI::ParseError(reason, CLI::ExitCodes::ExtrasError);
  } catch (const CLI::ParseError& error) {
    const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
    if (code == CLI::ExitCodes::Success) throw;
    const bool is_name =
        code == CLI::ExitCodes::ExtrasError || code == CLI::ExitCodes::RequiredError;
    const std::string reason =
        is_name ? first_unknown(app, words, Unknown::commands_and_options) : "";
    throw CLI::ParseError(reason.empty() ? plain_words(app, error) : reason, code);
  }
}

}  // namespace qkv::cli

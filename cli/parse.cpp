#include "parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

namespace qkv::cli {
namespace {

constexpr char kShield = '\x1f';  // put behind a bracketed text, and taken off before it is used

void unshield_options(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    option->transform([](const std::string& text) {
      return text.ends_with(kShield) ? text.substr(0, text.size() - 1) : text;
    });
  }
  for (CLI::App* inner : app.get_subcommands([](CLI::App*) { return true; })) {
    unshield_options(*inner);
  }
}

// How many letters to insert, remove, replace or swap with their neighbour.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::move(last);
    last = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

// The nearest name, or "" when none is near enough to be meant.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t least = word.size() / 3 + 2;
  for (const std::string& name : names) {
    const std::size_t letters = name.starts_with(word) ? 1 : distance(word, name);
    if (letters < least) best = name, least = letters;
  }
  return best;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* inner : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(inner->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string refusal(const std::string& what, const std::string& word, const std::string& meant) {
  return "there is no " + what + " " + word +
         (meant.empty() ? "" : "; did you mean " + meant + "?");
}

// Why the first word that means nothing means nothing, or "".
std::string first_unknown(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word.starts_with("--")) {
      const std::vector<std::string> names = option_names(*at);
      const std::string name = word.substr(0, word.find('='));
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      return refusal("option", name, nearest(name, names));
    }
    const std::vector<std::string> names = command_names(*at);
    if (names.empty()) continue;  // an argument
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      return refusal("command", word, nearest(word, names));
    }
    at = at->get_subcommand(word);
  }
  return "";
}

}  // namespace

void parse(CLI::App& app, int argc, const char* const* argv) {
  unshield_options(app);
  std::vector<std::string> words(argv + 1, argv + argc);
  std::vector<std::string> shielded;
  for (const std::string& word : words) {
    const bool is_bracketed = word.starts_with('[') && word.ends_with(']');
    shielded.push_back(is_bracketed ? word + kShield : word);
  }
  std::reverse(shielded.begin(), shielded.end());  // as CLI11 wants them
  try {
    app.parse(shielded);
  } catch (const CLI::ExtrasError&) {
    const std::string reason = first_unknown(app, words);
    if (reason.empty()) throw;
    throw CLI::ParseError(reason, CLI::ExitCodes::ExtrasError);
  } catch (const CLI::RequiredError&) {
    const std::string reason = first_unknown(app, words);
    if (reason.empty()) throw;
    throw CLI::ParseError(reason, CLI::ExitCodes::RequiredError);
  }
}

}  // namespace qkv::cli

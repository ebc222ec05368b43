#include "command_tree.h"

#include <CLI/CLI.hpp>

#include "value_checks.h"

namespace qkv::cli {
namespace {

OptionSpec spec_of(const CLI::Option& option) {
  OptionSpec spec;
  const auto& longs = option.get_lnames();
  const auto& shorts = option.get_snames();
  spec.name = longs.empty() ? option.get_single_name() : "--" + longs.front();
  if (!shorts.empty()) spec.short_name = "-" + shorts.front();
  spec.description = option.get_description();
  spec.default_value = option.get_default_str();
  spec.is_required = option.get_required();
  if (option.get_items_expected_max() == 0) return spec;  // a flag
  const std::string type = option.get_type_name();
  spec.choices = value_rule(type).choices;
  spec.value = type.substr(0, type.find(':'));
  spec.is_repeated = option.get_items_expected_max() > 1 ||
                     option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  return spec;
}

CommandSpec walk(const CLI::App& app, const std::string& path) {
  CommandSpec spec;
  spec.path = path;
  spec.name = app.get_name();
  spec.description = app.get_description();
  spec.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) {
    (option->get_positional() ? spec.arguments : spec.options).push_back(spec_of(*option));
  }
  for (const CLI::App* inner : app.get_subcommands([](const CLI::App*) { return true; })) {
    spec.commands.push_back(walk(*inner, (path.empty() ? "" : path + " ") + inner->get_name()));
  }
  return spec;
}

void flatten(const CommandSpec& spec, std::vector<const CommandSpec*>& all) {
  all.push_back(&spec);
  for (const CommandSpec& inner : spec.commands) flatten(inner, all);
}

}  // namespace

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* inner : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(inner->get_name());
  }
  return names;
}

CommandSpec command_tree(const CLI::App& app) { return walk(app, ""); }

std::vector<const CommandSpec*> flattened(const CommandSpec& root) {
  std::vector<const CommandSpec*> all;
  flatten(root, all);
  return all;
}

}  // namespace qkv::cli

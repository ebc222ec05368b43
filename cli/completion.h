// Scripts that let a shell complete the command line, made from the program's own options.
#pragma once

#include <cstdint>
#include <string>

#include "command_tree.h"

namespace qkv::cli {

std::string bash_completion(const CommandSpec& root);
std::string zsh_completion(const CommandSpec& root);
std::string fish_completion(const CommandSpec& root);

// What a shell offers for a value: its choices, folders, files, or nothing.
enum class Offer : std::uint8_t { choices, folders, files, nothing };
Offer offer_for(const OptionSpec& option);

// 'text', where a quote inside becomes `escaped_quote`: shells differ in how they write it.
std::string shell_quoted(const std::string& text, const std::string& escaped_quote = "'\\''");

}  // namespace qkv::cli

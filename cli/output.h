// Standard output and standard input of the commands on text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/error.h"

namespace qkv::cli {

// Whoever read standard output has gone (`qkv ... | head`): no failure, and nothing more to say.
struct OutputClosed : Error {
  OutputClosed() : Error("standard output was closed") {}
};

// Writes and flushes, so that a reader sees text as it comes. Throws OutputClosed, or Error when
// the disk is full.
void write_output(std::string_view text);

// One object, indented; bytes that are no UTF-8 (a path, half a character) are replaced.
void print_json(const nlohmann::ordered_json& json);

// Standard input, with a word on standard error when a person is expected to type it.
std::string read_input(const char* what);
// Lines without their ends, LF or CR LF; of standard input, too.
std::vector<std::string> lines_of_text(const std::string& text);
std::vector<std::string> read_input_lines(const char* what);

}  // namespace qkv::cli

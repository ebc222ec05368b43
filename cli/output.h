// Standard output, standard error and standard input of the commands.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkv/error.h"

namespace qkv::cli {

// The reader of standard output has gone (`qkv ... | head`): no failure, and nothing more to say.
struct OutputClosed : Error {
  OutputClosed() : Error("standard output was closed") {}
};

// First of all: what is opened later never takes the number of a standard stream that the caller
// closed, and a write to a closed pipe is an error to look at instead of the end of the process.
void prepare_streams();

// Writes and flushes, so that a reader sees text as it comes. A file or a pipe gets the bytes; a
// terminal gets them as shown_text. Throws OutputClosed, or Error when the disk is full.
void write_output(std::string_view text);
// For what is meant to command the terminal (colours) and is clean otherwise.
void write_raw_output(std::string_view text);

// Messages and progress, always as shown_text. Never throws: a log that cannot be written does not
// undo the work.
void write_error(std::string_view text) noexcept;

template <class... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void print_err(fmt::format_string<Args...> format, Args&&... args) {
  write_error(fmt::format(format, std::forward<Args>(args)...));
}

// One object, indented; bytes that are no UTF-8 (a path, half a character) are replaced.
void print_json(const nlohmann::ordered_json& json);

// Standard input, with a word on standard error when a person is expected to type it. Error beyond
// a gibibyte.
std::string read_input(const char* what);
// Lines without their ends, LF or CR LF; of standard input, too.
std::vector<std::string> lines_of_text(const std::string& text);
std::vector<std::string> read_input_lines(const char* what);
// Each line of standard input as it comes, without its LF; `idle` is called before waiting for
// more. Error when a line is longer than a gibibyte.
void each_input_line(const std::function<void(std::string_view line)>& each,
                     const std::function<void()>& idle);

}  // namespace qkv::cli

#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/check.h"

namespace qkv::cli {

void write_output(std::string_view text) {
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw OutputClosed();
  fail("standard output: {}", std::strerror(errno));
}

void print_json(const nlohmann::ordered_json& json) {
  write_output(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::string read_input(const char* what) {
  if (::isatty(STDIN_FILENO) == 1) {
    fmt::print(stderr, "qkv: reading {} from the keyboard; Ctrl-D ends it\n", what);
  }
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) {
    text.append(buffer, count);
  }
  check(std::ferror(stdin) == 0, "standard input: {}", std::strerror(errno));
  return text;
}

std::vector<std::string> lines_of_text(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> read_input_lines(const char* what) {
  return lines_of_text(read_input(what));
}

}  // namespace qkv::cli

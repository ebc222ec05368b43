#include "output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "core/check.h"
#include "io/shown.h"

namespace qkv::cli {
namespace {

constexpr std::size_t kLongestInput = std::size_t{1} << 30;

// What standard input has, up to the size of the buffer; 0 at its end.
std::size_t read_some(char* buffer, std::size_t size) {
  ssize_t got = -1;
  do got = ::read(STDIN_FILENO, buffer, size);
  while (got < 0 && errno == EINTR);
  check(got >= 0, "standard input: {}", std::strerror(errno));
  return static_cast<std::size_t>(got);
}

void check_length(std::size_t length, const char* what) {
  check(length <= kLongestInput, "standard input: {} longer than {} bytes", what, kLongestInput);
}

}  // namespace

void prepare_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  // Opened so that reading standard input and writing standard output still fail, as they would
  // have: /dev/null is no input, and results must not vanish.
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    ::open("/dev/null", kModes[number]);  // takes the lowest number that is free, which is this
  }
}

void write_raw_output(std::string_view text) {
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw OutputClosed();
  fail("standard output: {}", std::strerror(errno));
}

void write_output(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  terminal ? write_raw_output(shown_text(text)) : write_raw_output(text);
}

void write_error(std::string_view text) noexcept {
  try {
    const std::string shown = shown_text(text);
    std::fwrite(shown.data(), 1, shown.size(), stderr);
  } catch (const std::bad_alloc&) {
    std::fputs("qkv: out of memory\n", stderr);
  }
}

void print_json(const nlohmann::ordered_json& json) {
  write_output(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::string read_input(const char* what) {
  if (::isatty(STDIN_FILENO) == 1) {
    print_err("qkv: reading {} from the keyboard; Ctrl-D ends it\n", what);
  }
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = read_some(buffer, sizeof buffer)) {
    check_length(text.size() + count, "a text");
    text.append(buffer, count);
  }
  return text;
}

void each_input_line(const std::function<void(std::string_view line)>& each,
                     const std::function<void()>& idle) {
  std::string rest;  // of a line that has not ended
  char buffer[1 << 16];
  for (;;) {
    idle();
    const std::size_t count = read_some(buffer, sizeof buffer);
    if (count == 0) break;
    std::string_view got(buffer, count);
    for (std::size_t end; (end = got.find('\n')) != got.npos; got.remove_prefix(end + 1)) {
      rest.append(got.substr(0, end));
      each(rest);
      rest.clear();
    }
    check_length(rest.size() + got.size(), "a line");
    rest.append(got);
  }
  if (!rest.empty()) each(rest);
  idle();
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

#include "command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/threads.h"

namespace qkv::cli {

void Common::add_to(CLI::App& command) {
  command.add_option("--threads", threads, "Threads to use (default: QKV_THREADS, or all cores)")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--json", json, "Print one JSON object instead of text");
  command.add_option("--device", device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

void Common::apply() const {
  if (threads > 0) set_num_threads(threads);
  if (device == "cuda") backend({DeviceType::cuda, 0});
}

std::string examples(const std::string& first, const std::string& second) {
  return "Examples:\n  " + first + "\n  " + second;
}

void write_file(const std::string& path, const std::string& content) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(temporary.c_str());
  fail("cannot write {}: {}", path, std::strerror(error));
}

}  // namespace qkv::cli

#include "command.h"

#include "core/backend.h"
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
  backend(chosen_device());
}

Device Common::chosen_device() const {
  return {device == "cuda" ? DeviceType::cuda : DeviceType::cpu, 0};
}

std::string examples(const std::string& first, const std::string& second) {
  return "Examples:\n  " + first + "\n  " + second;
}

}  // namespace qkv::cli

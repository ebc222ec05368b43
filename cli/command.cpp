#include "command.h"

#include <algorithm>

#include "core/backend.h"
#include "qkv/cpu.h"
#include "qkv/threads.h"

namespace qkv::cli {

void Common::add_to(CLI::App& command) {
  command.add_option("--threads", threads, "Threads to use (default: QKV_THREADS, or all cores)")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--json", json, "Print one JSON object instead of text");
  command.add_option("--device", device, "Where to compute")
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

void add_target(CLI::App& command, std::string& target) {
  command.add_option("--target", target, "CPU target to use; qkv info lists those of this machine")
      ->check([](const std::string& name) {
        const std::vector<std::string> known = cpu_targets();
        const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
        return is_known ? "" : name + " is none of " + CLI::detail::join(known, ", ");
      })
      ->type_name("TARGET");
}

void add_texts(CLI::App& command, std::vector<std::string>& texts) {
  command.add_option("texts", texts, "Texts (default: the lines of standard input)");
}

std::string examples(const std::string& first, const std::string& second) {
  return "Examples:\n  " + first + "\n  " + second;
}

}  // namespace qkv::cli

// qkv-conformance: runs ONNX operator cases through the public API on every CPU target.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "conformance/case.h"
#include "conformance/compare.h"
#include "qkv/cpu.h"
#include "qkv/error.h"

namespace conformance {
namespace {

namespace fs = std::filesystem;

constexpr int kFailure = 1, kUsage = 2, kSkipped = 77;  // 77: what ctest is told to read as skipped

constexpr const char* kHelp =
    "usage: qkv-conformance [--target NAME] [--skip-missing] PATH...\n"
    "\n"
    "Runs ONNX operator cases (.safetensors; a folder is searched for them) and prints a line per\n"
    "failure and, last, 'N passed, N failed'. Every case runs once per CPU target.\n"
    "\n"
    "  --target NAME   only this CPU target instead of all that the machine has\n"
    "  --skip-missing  exit with 77 when a PATH does not exist\n"
    "  --help          this text\n"
    "\n"
    "Exit status: 0 all passed, 1 a case failed, 2 usage.\n";

using Runner = Outputs (*)(const Case&);
const std::map<std::string, Runner> kRunners = {
    {"Attention", run_attention},           {"Gelu", run_gelu},
    {"LayerNormalization", run_layer_norm}, {"RMSNormalization", run_rms_norm},
    {"RotaryEmbedding", run_rotary},        {"Softmax", run_softmax}};

struct Options {
  std::vector<std::string> paths;
  std::string target;
  bool skip_missing = false, help = false;
};

struct Totals {
  int passed = 0, failed = 0;
};

void report(const std::string& target, const fs::path& path, const std::string& what) {
  std::printf("FAIL %s %s: %s\n", target.c_str(), path.stem().c_str(), what.c_str());
}

// Prints a line per wrong tensor; true when there is none.
bool check_outputs(const std::string& target, const fs::path& path, const Case& c,
                   const Outputs& outputs) {
  bool passed = true;
  for (const std::string& slot : c.outputs()) {
    const auto found = outputs.find(slot);
    const std::string problem = found == outputs.end() ? "the operator has no such output"
                                                       : difference(found->second, c.output(slot));
    if (problem.empty()) continue;
    report(target, path, slot + " " + problem);
    passed = false;
  }
  return passed;
}

void run_case(const std::string& target, const fs::path& path, Totals& totals) {
  try {
    const Case c(path.string());
    const auto runner = kRunners.find(c.op());
    if (runner == kRunners.end()) throw qkv::Error("unknown operator '" + c.op() + "'");
    if (c.outputs().empty()) throw qkv::Error("the case expects no output");
    ++(check_outputs(target, path, c, runner->second(c)) ? totals.passed : totals.failed);
  } catch (const std::exception& error) {
    report(target, path, error.what());
    ++totals.failed;
  }
}

std::vector<fs::path> find_cases(const std::string& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> cases;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

int usage_error(const std::string& message) {
  std::fprintf(stderr, "qkv-conformance: %s (try --help)\n", message.c_str());
  return kUsage;
}

// Throws qkv::Error on what it does not know.
Options parse(int argc, char** argv) {
  Options options;
  bool only_paths = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (only_paths || !argument.starts_with("-")) {
      options.paths.push_back(argument);
    } else if (argument == "--") {
      only_paths = true;
    } else if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else if (argument == "--skip-missing") {
      options.skip_missing = true;
    } else if (argument == "--target" && i + 1 < argc) {
      options.target = argv[++i];
    } else {
      throw qkv::Error("unknown or incomplete option '" + argument + "'");
    }
  }
  return options;
}

int run(const Options& options) {
  if (options.help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (options.paths.empty()) return usage_error("no PATH given");
  std::vector<std::string> targets = qkv::cpu_targets();
  if (!options.target.empty()) {
    qkv::set_cpu_target(options.target);
    targets = {options.target};
  }
  std::vector<fs::path> cases;
  for (const std::string& path : options.paths) {
    if (!fs::exists(path)) {
      if (!options.skip_missing) return usage_error("'" + path + "' does not exist");
      std::printf("SKIPPED: '%s' does not exist\n", path.c_str());
      return kSkipped;
    }
    for (fs::path& found : find_cases(path)) cases.push_back(std::move(found));
  }
  if (cases.empty()) return usage_error("no .safetensors file found");

  Totals totals;
  for (const std::string& target : targets) {
    qkv::set_cpu_target(target);
    std::printf("target %s, %zu cases\n", target.c_str(), cases.size());
    for (const fs::path& path : cases) run_case(target, path, totals);
  }
  std::printf("%d passed, %d failed\n", totals.passed, totals.failed);
  return totals.failed > 0 ? kFailure : 0;
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  try {
    return conformance::run(conformance::parse(argc, argv));
  } catch (const std::exception& error) {
    return conformance::usage_error(error.what());
  }
}

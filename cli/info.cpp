// qkv info: what this build is and what it runs on.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "output.h"
#include "qkv/cpu.h"
#include "qkv/threads.h"
#include "qkv/version.h"

namespace qkv::cli {
namespace {

struct InfoOptions {
  Common common;
  bool peak = false;
};

void run_info(const InfoOptions& options) {
  options.common.apply();
  nlohmann::ordered_json info{{"version", kVersion},
                              {"target", cpu_target()},
                              {"targets", cpu_targets()},
                              {"threads", num_threads()}};
  if (options.peak) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      info["peak_gflops"][to_string(dtype)] = cpu_peak_gflops(dtype);
    }
  }
  if (options.common.json) {
    print_json(info);
    return;
  }
  print_out("qkv {}\n", kVersion);
  print_out("  CPU target  {} (this machine has {})\n", cpu_target(),
            fmt::join(cpu_targets(), ", "));
  print_out("  threads     {}\n", num_threads());
  if (!options.peak) return;
  for (const auto& [dtype, gflops] : info["peak_gflops"].items()) {
    print_out("  peak {:<6} {:.0f} GFLOP/s\n", dtype, gflops.get<double>());
  }
}

}  // namespace

void add_info(CLI::App& app, Job& job) {
  CLI::App* info = app.add_subcommand("info", "Version, CPU targets and threads");
  info->footer(examples("qkv info", "qkv info --peak --threads 2 --json"));
  const auto options = std::make_shared<InfoOptions>();
  options->common.add_to(*info);
  info->add_flag("--peak", options->peak, "Measure the peak of multiply-adds for each dtype");
  info->callback([&job, options] { job = [options] { run_info(*options); }; });
}

}  // namespace qkv::cli

// qkv verify: does the model compute what its reference says?
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "io/shown.h"
#include "output.h"
#include "qkv/cpu.h"
#include "qkv/error.h"
#include "verify_model.h"

namespace qkv::cli {
namespace {

struct VerifyOptions {
  Common common;
  std::vector<std::string> folders;
  std::string dtype;
  bool verbose = false;
};

void run_verify(const VerifyOptions& options) {
  options.common.apply();
  std::optional<DType> dtype;
  if (!options.dtype.empty()) dtype = dtype_from_string(options.dtype);
  std::size_t passed = 0, failed = 0;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& folder : options.folders) {
    VerifyReport report;
    try {
      report = verify_model(folder, dtype, options.common.chosen_device());
    } catch (const Error& error) {
      report.fail("error", folder, error.what());
    }
    passed += report.passed();
    failed += report.failed();
    if (options.common.json) {
      all.push_back({{"folder", folder},
                     {"passed", report.passed()},
                     {"failed", report.failed()},
                     {"compared", report.json()}});
    } else {
      print_out("{}\n{}", shown_text(folder), shown_text(report.text(options.verbose)));
    }
  }
  if (options.common.json) {
    print_json({{"target", cpu_target()}, {"passed", passed}, {"failed", failed}, {"models", all}});
  } else {
    print_out("{} passed, {} failed\n", passed, failed);
  }
  if (failed > 0)
    throw Error(fmt::format("verify: {} of {} comparisons failed", failed, passed + failed));
}

}  // namespace

void add_verify(CLI::App& app, Job& job) {
  CLI::App* verify = app.add_subcommand(
      "verify", "Compare a model with the expected.safetensors that lies beside it");
  verify->footer(examples("qkv verify path/to/model", "qkv verify goldens/* --json"));
  const auto options = std::make_shared<VerifyOptions>();
  options->common.add_to(*verify);
  verify
      ->add_option("folders", options->folders,
                   "Folders with config.json, model.safetensors and expected.safetensors")
      ->required()
      ->type_name("DIR");
  verify->add_option("--dtype", options->dtype, "Convert the weights first (default: as stored)")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "i8"}));
  verify->add_flag("--verbose", options->verbose, "A line for every tensor");
  verify->callback([&job, options] { job = [options] { run_verify(*options); }; });
}

}  // namespace qkv::cli

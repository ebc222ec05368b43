// qkv: exit status 0 when it worked, 1 when it failed, 2 when it was called wrongly.
#include <cstdio>
#include <exception>

#include "command.h"
#include "qkv/version.h"

int main(int argc, char** argv) {
  CLI::App app{"Attention, from the score to the Transformer.", "qkv"};
  app.set_version_flag("--version", std::string("qkv ") + qkv::kVersion);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return "qkv: " + std::string(error.what()) + " (--help shows how to call it)\n";
  });
  app.footer(qkv::cli::examples("qkv study scale --out report.html",
                                "qkv bench attention --shape 1,12,12,512,512,64"));
  qkv::cli::Job job;
  try {
    qkv::cli::add_bench(app, job);
    qkv::cli::add_perplexity(app, job);
    qkv::cli::add_quantize(app, job);
    qkv::cli::add_study(app, job);
    qkv::cli::add_verify(app, job);
    qkv::cli::add_inspect(app, job);
    qkv::cli::add_tokenize(app, job);
    qkv::cli::add_info(app, job);
    app.parse(argc, argv);
    job();
    return std::fflush(stdout) == 0 ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help and --version
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qkv: %s\n", error.what());
    return 1;
  }
}

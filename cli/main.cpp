// qkv: exit status 0 when it worked, 1 when it failed, 2 when it was called wrongly, 130 when
// Ctrl-C ended it early.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>

#include "bus_error.h"
#include "command.h"
#include "interrupt.h"
#include "output.h"
#include "parse.h"
#include "qkv/version.h"

namespace {

void add_commands(CLI::App& app, qkv::cli::Job& job) {
  qkv::cli::add_translate(app, job);
  qkv::cli::add_generate(app, job);
  qkv::cli::add_encode(app, job);
  qkv::cli::add_fill(app, job);
  qkv::cli::add_classify(app, job);
  qkv::cli::add_look(app, job);
  qkv::cli::add_serve(app, job);
  qkv::cli::add_train(app, job);
  qkv::cli::add_bench(app, job);
  qkv::cli::add_study(app, job);
  qkv::cli::add_verify(app, job);
  qkv::cli::add_inspect(app, job);
  qkv::cli::add_tokenize(app, job);
  qkv::cli::add_tokenizer(app, job);
  qkv::cli::add_quantize(app, job);
  qkv::cli::add_perplexity(app, job);
  qkv::cli::add_bleu(app, job);
  qkv::cli::add_info(app, job);
  qkv::cli::add_help(app, job);
  qkv::cli::add_completion(app, job);
}

int failed(const char* reason) {
  std::fprintf(stderr, "qkv: %s\n", reason);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a closed pipe is an error to look at, not an end
  qkv::cli::explain_bus_errors();
  CLI::App app{"Attention, from the score to the Transformer.", "qkv"};
  app.set_version_flag("--version", std::string("qkv ") + qkv::kVersion);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return "qkv: " + std::string(error.what()) + " (--help shows how to call it)\n";
  });
  app.footer(qkv::cli::examples("qkv generate path/to/stories15m 'Once upon a time'",
                                "qkv study scale --out report.html"));
  qkv::cli::Job job;
  try {
    add_commands(app, job);
    qkv::cli::parse(app, argc, argv);
    job();
    qkv::cli::write_output("");
    return qkv::cli::interrupted() ? 130 : 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help and --version
  } catch (const qkv::cli::OutputClosed&) {
    return 0;
  } catch (const std::system_error& error) {
    return error.code().value() == EPIPE ? 0 : failed(error.what());
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

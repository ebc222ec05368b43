// qkv: exit status 0 when it worked, 1 when it failed, 2 when it was called wrongly, 130 when
// Ctrl-C ended it early, 143 when SIGTERM did.
#include <algorithm>
#include <exception>
#include <new>
#include <sstream>
#include <string>

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
  // One line of bounded length, whatever a name or a file put into it.
  constexpr std::size_t kLongest = 4000;
  std::string line(reason);
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "...";
  std::replace(line.begin(), line.end(), '\n', ' ');
  qkv::cli::write_error("qkv: " + line + "\n");
  return 1;
}

// What CLI11 has to say: help and the version to standard output, else a line to standard error.
int answer(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, ignored;
  const bool asked = app.exit(error, out, ignored) == 0;  // --help and --version
  qkv::cli::write_output(out.str());
  if (asked) return 0;
  failed((std::string(error.what()) + " (--help shows how to call it)").c_str());
  return 2;
}

int run(int argc, const char* const* argv) {
  CLI::App app{"Attention, from the score to the Transformer.", "qkv"};
  app.set_version_flag("--version", std::string("qkv ") + qkv::kVersion);
  app.require_subcommand(1);
  app.footer(qkv::cli::examples("qkv generate path/to/stories15m 'Once upon a time'",
                                "qkv study scale --out report.html"));
  qkv::cli::Job job;
  add_commands(app, job);
  try {
    qkv::cli::parse(app, argc, argv);
  } catch (const CLI::ParseError& error) {
    return answer(app, error);
  }
  job();
  qkv::cli::write_output("");
  return qkv::cli::interrupted() ? qkv::cli::interrupt_status() : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    qkv::cli::prepare_streams();
    qkv::cli::explain_bus_errors();
    return run(argc, argv);
  } catch (const qkv::cli::OutputClosed&) {
    return 0;
  } catch (const std::bad_alloc&) {
    return failed("out of memory");
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

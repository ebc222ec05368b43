// qkv serve: the page of qkv look, live, and the curves of training runs.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "command.h"
#include "core/check.h"
#include "http/server.h"
#include "interrupt.h"
#include "look_model.h"
#include "output.h"
#include "viewer/host.h"

namespace qkv::cli {
namespace {

struct ServeCommand {
  Common common;
  ModelOptions model;
  HttpOptions http;
  std::string token, runs, example;
  bool ids = false;
};

std::string random_token() {
  std::ifstream random("/dev/urandom", std::ios::binary);
  std::string bytes(16, '\0');
  random.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  check(random.good(), "/dev/urandom cannot be read; choose a token with --token");
  std::string token;
  for (const char byte : bytes) token += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return token;
}

// Something every model can read.
std::string example_for(const ServeCommand& c, const ModelInfo& info) {
  if (!c.example.empty()) return c.example;
  if (c.ids) return "5 6 7 8";
  if (!info.input_symbols.empty()) return "attention";
  if (c.model.folder.empty()) return "Le chat s'est assis sur le tapis.";
  return info.kind == ModelKind::decoder ? "Once upon a time" : "The cat sat on the mat.";
}

void tell(const ServeCommand& c, const ViewerOptions& options, int port) {
  const bool everywhere = c.http.host == "0.0.0.0" || c.http.host == "::";
  const std::string host = everywhere                                   ? "localhost"
                           : c.http.host.find(':') != std::string::npos ? "[" + c.http.host + "]"
                                                                        : c.http.host;
  const std::string url = fmt::format("http://{}:{}/", host, port);
  const std::string token = options.token.empty() ? "" : "?token=" + options.token;
  if (c.common.json) {
    print_json({{"url", url + token}, {"port", port}, {"token", options.token}});
    return;
  }
  write_output(fmt::format("{}{}\n", url, token));
  print_err("open it in a browser; Ctrl-C ends it\n");
}

void run_serve(const ServeCommand& c) {
  c.common.apply();
  const bool local = viewer::is_loopback(c.http.host);
  std::error_code error;
  check(c.runs.empty() || std::filesystem::is_directory(c.runs, error),
        "--runs {}: there is no such folder", c.runs);
  const LookModel model(c.model, c.common, c.ids);
  ViewerOptions options{.title = model.name(), .token = c.token, .local = local, .runs = c.runs};
  if (!local && options.token.empty()) options.token = random_token();
  options.model = model.info();
  options.example = example_for(c, model.info());
  options.max_body = c.http.limits.body;
  Viewer viewer(
      [&](const Viewer::Query& query) {
        const auto cancelled = [&query] {
          return interrupted() || (query.cancelled && query.cancelled());
        };
        return model(query.text, query.target,
                     {.new_tokens = query.new_tokens,
                      .on_step = [&] { return !cancelled(); },
                      .cancelled = cancelled});
      },
      options);
  watch_interrupts();
  const bool ended = serve_http(
      viewer, c.http,
      {.on_ready = [&](int port) { tell(c, options, port); }, .should_end = interrupted});
  if (!ended) {  // a long text is still being computed, and nothing else would stop it
    print_err("ended, one look unfinished\n");
    std::_Exit(interrupt_status());
  }
  print_err("ended\n");
}

}  // namespace

void add_serve(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("serve", "Look at attention live in a browser, and at training runs");
  command->footer(examples("qkv serve",
                           "qkv serve --model path/to/stories15m --port 9000 --runs path/to/runs"));
  const auto c = std::make_shared<ServeCommand>();
  c->model.add_named_to(*command);
  command->add_option("--host", c->http.host, "Address to listen on")->capture_default_str();
  command->add_option("--port", c->http.port, "Port; 0 takes one that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--token", c->token,
                      "Needed with every request (default: none on this machine, else random)");
  command->add_option("--runs", c->runs, "Folder of training runs, each with a metrics.jsonl")
      ->type_name("DIR");
  command->add_option("--example", c->example, "The text the page begins with");
  command->add_flag("--ids", c->ids, "Texts are token ids: no tokenizer needed");
  c->common.add_to(*command);
  command->callback([&job, c] { job = [c] { run_serve(*c); }; });
}

}  // namespace qkv::cli

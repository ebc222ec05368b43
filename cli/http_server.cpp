#include "http_server.h"

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/check.h"

namespace qkv::cli {
namespace {

constexpr int kConnections = 8;  // at one time; others wait
constexpr int kSeconds = 10;     // for a request to arrive, and for its answer to leave

std::string token_of(const httplib::Request& request) {
  const std::string header = request.get_header_value("Authorization");
  return header.starts_with("Bearer ") ? header.substr(7) : request.get_param_value("token");
}

void answer(Viewer& viewer, const httplib::Request& request, httplib::Response& response) {
  ViewerRequest asked{.method = request.method, .path = request.path};
  for (const auto& [name, value] : request.params) asked.query.emplace_back(name, value);
  asked.body = request.body;
  asked.host = request.get_header_value("Host");
  asked.token = token_of(request);
  ViewerResponse said = viewer(asked);
  response.status = said.status;
  response.set_content(std::move(said.body), said.type);
}

void set_headers(httplib::Server& server) {
  server.set_default_headers(
      {{"X-Content-Type-Options", "nosniff"},
       {"X-Frame-Options", "DENY"},
       {"Referrer-Policy", "no-referrer"},
       {"Cache-Control", "no-store"},
       {"Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"}});
}

}  // namespace

void serve_http(Viewer& viewer, const HttpOptions& options, const std::function<void(int)>& ready,
                const std::function<bool()>& wants_end) {
  httplib::Server server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
  server.set_payload_max_length(options.max_body);
  server.set_read_timeout(kSeconds);
  server.set_write_timeout(kSeconds);
  server.set_keep_alive_max_count(100);
  server.set_keep_alive_timeout(2);
  // Not the library's own, which would let a second server take the same port unnoticed.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  set_headers(server);
  const auto handle = [&viewer](const httplib::Request& request, httplib::Response& response) {
    answer(viewer, request, response);
  };
  server.Get(".*", handle);
  server.Post(".*", handle);
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;  // the viewer has said why
    const char* why = response.status == 413 ? "the request is too long" : "not understood";
    response.set_content(std::string("{\"error\":\"") + why + "\"}", "application/json");
  });
  const int port = options.port == 0 ? server.bind_to_any_port(options.host)
                   : server.bind_to_port(options.host, options.port) ? options.port
                                                                     : -1;
  check(port > 0, "{}:{} cannot be listened on; is it in use? --port chooses another", options.host,
        options.port);
  std::atomic<bool> ended = false;
  std::thread listener([&] {
    server.listen_after_bind();
    ended = true;
  });
  ready(port);  // the port is listened on; what comes before the thread runs waits
  while (!ended && (!wants_end() || !server.is_running())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  server.stop();
  listener.join();
}

}  // namespace qkv::cli

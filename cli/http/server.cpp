#include "http/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/check.h"
#include "http/connections.h"

namespace qkv::cli {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using SystemError = boost::system::error_code;

constexpr int kWorkers = 8;  // more than looks that may wait, so that a page always finds one
constexpr std::chrono::milliseconds kTick{50};
constexpr rlim_t kOtherFiles = 64;  // descriptors left to everything but connections

tcp::endpoint endpoint_of(asio::io_context& io, const HttpOptions& options) {
  SystemError error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  check(!error && !found.empty(), "--host {}: no address of this machine: {}", options.host,
        error.message());
  for (const auto& one : found) {
    if (one.endpoint().address().is_v4()) return one.endpoint();
  }
  return found.begin()->endpoint();
}

HttpLimits within_descriptors(HttpLimits limits) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
    const rlim_t most =
        files.rlim_cur > 2 * kOtherFiles ? files.rlim_cur - kOtherFiles : files.rlim_cur / 2;
    limits.connections =
        static_cast<int>(std::min<rlim_t>(static_cast<rlim_t>(limits.connections), most));
  }
  return limits;
}

class Server {
 public:
  Server(Viewer& viewer, const HttpOptions& options, const HttpEvents& events)
      : limits_(within_descriptors(options.limits)),
        events_(events),
        shared_{viewer, limits_, io_, workers_, connections_} {
    listen(options);
  }

  // False: a worker still runs.
  bool run() {
    accept();
    events_.on_ready(acceptor_.local_endpoint().port());
    tick();
    io_.run();
    return shared_.running == 0;
  }

 private:
  void listen(const HttpOptions& options) {
    const tcp::endpoint endpoint = endpoint_of(io_, options);
    SystemError error;
    acceptor_.open(endpoint.protocol(), error);
    // Not SO_REUSEPORT, with which a second server would take the same port unnoticed.
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    check(!error, "{}:{} cannot be listened on: {}; --port chooses another", options.host,
          options.port, error.message());
  }

  void accept() {
    accepting_ = true;
    acceptor_.async_accept([this](SystemError error, tcp::socket socket) {
      accepting_ = false;
      if (!acceptor_.is_open()) return;
      if (error) {  // out of descriptors or memory: tick() tries again
        connections_.close_longest_waiting();
        return;
      }
      const auto connection = std::make_shared<Connection>(std::move(socket), shared_);
      if (connections_.add(connection)) connection->start();
      accept();
    });
  }

  void tick() {
    timer_.expires_after(kTick);
    timer_.async_wait([this](SystemError) {
      if (!ended_at_ && events_.should_end()) end();
      if (!ended_at_) {
        if (!accepting_) accept();
        return tick();
      }
      if (connections_.empty() && shared_.running == 0) return;
      if (std::chrono::steady_clock::now() - *ended_at_ < limits_.end_time) return tick();
      connections_.close();
    });
  }

  void end() {
    ended_at_ = std::chrono::steady_clock::now();
    SystemError ignored;
    acceptor_.close(ignored);
    connections_.end();
  }

  const HttpLimits limits_;
  const HttpEvents& events_;
  asio::io_context io_{1};
  asio::thread_pool workers_{kWorkers};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer timer_{io_};
  Connections connections_{limits_};
  HttpShared shared_;
  std::optional<std::chrono::steady_clock::time_point> ended_at_;
  bool accepting_ = false;
};

}  // namespace

bool serve_http(Viewer& viewer, const HttpOptions& options, const HttpEvents& events) {
  auto server = std::make_unique<Server>(viewer, options, events);
  if (server->run()) return true;
  static_cast<void>(server.release());  // a worker still runs in it
  return false;
}

}  // namespace qkv::cli

// HTTP in front of a viewer, on Boost.Beast. One thread owns every socket and never computes; a few
// workers compute and never touch a socket, so that no client can hold another one up. A build
// without Boost has an Error that names the package.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "qkv/viewer.h"

namespace qkv::cli {

// What a client may take of the server. A deadline missed ends the connection; above
// the limits of connections the one that has kept the server waiting longest makes room.
struct HttpLimits {
  std::size_t head = 16 << 10;     // bytes of request line and headers
  std::size_t body = 256 << 10;    // bytes, however they are framed
  std::size_t unsent = 256 << 20;  // bytes of all answers that clients have not read yet
  int connections = 1024, per_client = 256;
  std::chrono::milliseconds head_time{10'000}, body_time{10'000}, answer_time{60'000};
  std::chrono::milliseconds idle_time{60'000};  // between two requests of a connection
  std::chrono::milliseconds end_time{1'500};    // for answers under way when the server ends
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any that is free
  HttpLimits limits{};
};

struct HttpEvents {
  std::function<void(int port)> on_ready;  // connections are taken from here on
  std::function<bool()> should_end;        // asked several times a second
};

// Answers until should_end. False: an answer was not done in time and its worker still runs, so
// that the process has to end without waiting for it. Error when the port cannot be had.
bool serve_http(Viewer& viewer, const HttpOptions& options, const HttpEvents& events);

}  // namespace qkv::cli

// HTTP in front of a viewer. A build without cpp-httplib has an Error that names the package.
#pragma once

#include <functional>
#include <string>

#include "qkv/viewer.h"

namespace qkv::cli {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                   // 0: any that is free
  std::size_t max_body = 256 << 10;  // bytes
};

// Answers until `wants_end` says so, asked several times a second. `ready` is told the port when
// connections are taken. Error when the port cannot be had.
void serve_http(Viewer& viewer, const HttpOptions& options, const std::function<void(int)>& ready,
                const std::function<bool()>& wants_end);

}  // namespace qkv::cli

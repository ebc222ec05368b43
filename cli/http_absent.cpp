#include "core/check.h"
#include "http_server.h"

namespace qkv::cli {

void serve_http(Viewer&, const HttpOptions&, const std::function<void(int)>&,
                const std::function<bool()>&) {
  fail(
      "this qkv was built without HTTP; install libcpp-httplib-dev (or run `make deps`) and build "
      "again. qkv look --out page.html needs no server");
}

}  // namespace qkv::cli

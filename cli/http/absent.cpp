#include "core/check.h"
#include "http/server.h"

namespace qkv::cli {

bool serve_http(Viewer&, const HttpOptions&, const HttpEvents&) {
  fail(
      "this qkv was built without HTTP; install libboost-dev (or run `make deps`) and build again. "
      "qkv look --out page.html needs no server");
}

}  // namespace qkv::cli

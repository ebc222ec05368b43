// What a request asks for: the parameters of its query, and the body of a look.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/viewer.h"

namespace qkv::viewer {

// The query of a request. Every Error names the parameter.
class Parameters {
 public:
  // Error where one is none of `known` (the token is always known), is there twice, or is not
  // UTF-8 text without NUL. `known` outlives this.
  Parameters(const ViewerRequest& request, const std::vector<std::string_view>& known);

  // Error where it is missing or empty.
  const std::string& text(std::string_view name) const;
  // A whole number from 0.
  std::int64_t index(std::string_view name) const;

  const ViewerRequest& request() const { return request_; }

 private:
  const ViewerRequest& request_;
};

// The body of /api/look.
Viewer::Query look_query(const std::string& body);

}  // namespace qkv::viewer

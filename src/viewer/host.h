// Who is asked and who asks: the Host and Origin headers of a request.
#pragma once

#include <string_view>

namespace qkv::viewer {

// "localhost" or a loopback address ("127.0.0.2", "::1", also in brackets); a name that only looks
// like one ("127.evil.example") is none.
bool is_loopback(std::string_view host);

// The same of a Host header, which may have a port.
bool is_loopback_authority(std::string_view authority);

// Whether a page of `origin` ("http://localhost:8080") is one that `host` served.
bool is_same_origin(std::string_view origin, std::string_view host);

}  // namespace qkv::viewer

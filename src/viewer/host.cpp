#include "viewer/host.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <string>

namespace qkv::viewer {
namespace {

bool same_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

bool is_port(std::string_view text) {
  return text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool is_loopback(std::string_view host) {
  if (same_but_for_case(host, "localhost")) return true;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.find('\0') != host.npos) return false;
  const std::string text(host);
  std::array<unsigned char, 16> address{};
  if (::inet_pton(AF_INET, text.c_str(), address.data()) == 1) return address[0] == 127;
  if (::inet_pton(AF_INET6, text.c_str(), address.data()) != 1) return false;
  return address.back() == 1 &&
         std::all_of(address.begin(), address.end() - 1, [](unsigned char b) { return b == 0; });
}

bool is_loopback_authority(std::string_view authority) {
  const bool bracketed = authority.starts_with('[');
  const std::size_t end = bracketed ? authority.find(']') : authority.rfind(':');
  if (bracketed && end == authority.npos) return false;
  const std::string_view host = authority.substr(0, bracketed ? end + 1 : end);
  const std::string_view rest = authority.substr(host.size());
  if (!rest.empty() && (rest.front() != ':' || !is_port(rest.substr(1)))) return false;
  return is_loopback(host) && (bracketed || host.find(':') == host.npos);
}

bool is_same_origin(std::string_view origin, std::string_view host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme)) return same_but_for_case(origin.substr(scheme.size()), host);
  }
  return false;
}

}  // namespace qkv::viewer

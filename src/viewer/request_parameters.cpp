#include "viewer/request_parameters.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "io/shown.h"
#include "io/strict_json.h"
#include "text/utf8.h"

namespace qkv::viewer {
namespace {

constexpr std::int64_t kMostNewTokens = 256;  // of one look

std::string one_of(const std::vector<std::string_view>& known) {
  std::string names;
  for (const std::string_view name : known) names.append(names.empty() ? "" : ", ").append(name);
  return names.empty() ? "this takes none" : "this takes " + names;
}

// 2.0 is a whole number in JSON, too.
std::int64_t new_tokens_of(const nlohmann::json& value) {
  const double number = value.is_number() ? value.get<double>() : -1;
  const bool fits = number >= 0 && number <= static_cast<double>(kMostNewTokens);
  const auto whole = fits ? static_cast<std::int64_t>(number) : -1;
  check(fits && static_cast<double>(whole) == number,
        "'new_tokens' must be a whole number from 0 to {}", kMostNewTokens);
  return whole;
}

}  // namespace

Parameters::Parameters(const ViewerRequest& request, const std::vector<std::string_view>& known)
    : request_(request) {
  std::vector<std::string_view> seen;
  for (const auto& [name, value] : request.query) {
    const bool is_known =
        name == "token" || std::find(known.begin(), known.end(), name) != known.end();
    check(is_known, "the query has '{}'; {}", shown_name(name), one_of(known));
    check(std::find(seen.begin(), seen.end(), name) == seen.end(), "the query has '{}' twice",
          name);
    seen.emplace_back(name);  // at most as many as are known
    check(text::is_valid_utf8(value) && value.find('\0') == std::string::npos,
          "'{}' must be UTF-8 text without NUL", name);
  }
}

const std::string& Parameters::text(std::string_view name) const {
  const auto found = std::find_if(request_.query.begin(), request_.query.end(),
                                  [name](const auto& pair) { return pair.first == name; });
  check(found != request_.query.end(), "the query needs '{}'", name);
  check(!found->second.empty(), "'{}' is empty", name);
  return found->second;
}

std::int64_t Parameters::index(std::string_view name) const {
  const std::string& digits = text(name);
  const char* const end = digits.data() + digits.size();
  std::int64_t value = -1;
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  check(error == std::errc() && stop == end && value >= 0,
        "'{}' must be a whole number from 0, got '{}'", name, shown_name(digits));
  return value;
}

Viewer::Query look_query(const std::string& body) {
  const nlohmann::json json = strict_json(body, "the body must be a JSON object");
  check(json.is_object(), "the body must be a JSON object");
  Viewer::Query query;
  for (const auto& [key, value] : json.items()) {
    if (key == "text" || key == "target") {
      check(value.is_string(), "'{}' must be a string", key);
      (key == "text" ? query.text : query.target) = value.get<std::string>();
    } else if (key == "new_tokens") {
      query.new_tokens = new_tokens_of(value);
    } else {
      fail("the body has '{}', which is none of text, target, new_tokens", shown_name(key));
    }
  }
  check(json.contains("text"), "the body needs 'text'");
  check(!query.text.empty(), "'text' is empty");
  return query;
}

}  // namespace qkv::viewer

#include "value_checks.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "io/shown.h"
#include "nearest.h"

namespace qkv::cli {
namespace {

using Kind = ValueRule::Kind;

// All of the text as a decimal number; nothing for anything else, or when T cannot hold it.
template <class T>
std::optional<T> parsed(std::string_view text) {
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

template <class T>
bool lies_within(const ValueRule& rule, T value) {
  const std::optional<T> least = parsed<T>(rule.least), most = parsed<T>(rule.most);
  return (!least || value >= *least) && (!most || value <= *most);
}

std::string range_text(const ValueRule& rule) {
  return rule.most.empty() ? "" : " from " + rule.least + " to " + rule.most;
}

[[noreturn]] void refuse_value(const std::string& expected, const std::string& value,
                               const std::string& more = "") {
  const std::string got = value.empty() ? "nothing" : "'" + shown_name(value) + "'";
  throw CLI::ValidationError("expected " + expected + ", got " + got + more);
}

template <class T>
std::string checked_integer(const ValueRule& rule, const std::string& value) {
  const std::optional<T> number = parsed<T>(value);
  const bool fits = number && lies_within(rule, *number);
  if (!fits) refuse_value("a whole number" + range_text(rule), value);
  return std::to_string(*number);
}

std::string checked_number(const ValueRule& rule, const std::string& value) {
  const std::optional<double> number = parsed<double>(value);
  const bool fits = number && std::isfinite(*number) && lies_within(rule, *number);
  if (!fits) refuse_value("a number" + range_text(rule), value);
  return value;
}

std::string checked_choice(const ValueRule& rule, const std::string& value) {
  for (const std::string& choice : rule.choices) {
    if (choice == value) return value;
  }
  std::string list;
  for (std::size_t i = 0; i < rule.choices.size(); ++i) {
    list += (i == 0 ? "" : i + 1 < rule.choices.size() ? ", " : " or ") + rule.choices[i];
  }
  refuse_value(list, value, advice(value, rule.choices));
}

}  // namespace

ValueRule value_rule(const std::string& type) {
  ValueRule rule;
  const std::string name = type.substr(0, type.find_first_of(":."));
  if (name == "INT") rule.kind = Kind::whole_number;
  if (name == "UINT") {
    rule.kind = Kind::natural_number;
    rule.least = "0";
    rule.most = "18446744073709551615";
  }
  if (name == "FLOAT") rule.kind = Kind::number;
  if (name == "DIR" || name == "FILE" || name == "OUT") rule.kind = Kind::path;
  const std::string in = " in [", dash = " - ";
  const std::size_t begin = type.find(in), end = type.find(']');
  if (begin != std::string::npos && end != std::string::npos) {
    const std::string range = type.substr(begin + in.size(), end - begin - in.size());
    const std::size_t between = range.find(dash);
    if (between != std::string::npos) {
      rule.least = range.substr(0, between);
      rule.most = range.substr(between + dash.size());
    }
  }
  const std::size_t open = type.find('{'), close = type.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    rule.choices = CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
  }
  return rule;
}

std::string checked_value(const ValueRule& rule, const std::string& value) {
  if (!rule.choices.empty()) return checked_choice(rule, value);
  switch (rule.kind) {
    case Kind::whole_number: return checked_integer<std::int64_t>(rule, value);
    case Kind::natural_number: return checked_integer<std::uint64_t>(rule, value);
    case Kind::number: return checked_number(rule, value);
    case Kind::path:
      if (value.empty()) refuse_value("a path", value);
      return value;
    default: return value;
  }
}

}  // namespace qkv::cli

// check(condition, "operator: what was expected, got {}", value): throws qkv::Error.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "qkv/device.h"
#include "qkv/dtype.h"
#include "qkv/error.h"
#include "qkv/tensor.h"

namespace fmt {

template <class T>
struct QkvStringFormatter : formatter<std::string> {
  template <class Context>
  auto format(const T& value, Context& context) const {
    return formatter<std::string>::format(qkv::to_string(value), context);
  }
};
template <>
struct formatter<qkv::Shape> : QkvStringFormatter<qkv::Shape> {};
template <>
struct formatter<qkv::DType> : QkvStringFormatter<qkv::DType> {};
template <>
struct formatter<qkv::Device> : QkvStringFormatter<qkv::Device> {};

}  // namespace fmt

namespace qkv {

// Error, or a kind of it: fail<OutOfMemory>("...").
template <class Kind = Error, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Kind(fmt::format(format, std::forward<Args>(args)...));
}

template <class Kind = Error, class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail<Kind>(format, std::forward<Args>(args)...);
}

}  // namespace qkv

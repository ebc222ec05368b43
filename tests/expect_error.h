// EXPECT_ERROR("part of the message", statement): the statement throws qkv::Error that says so.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "qkv/error.h"

namespace qkv::testing {

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no qkv::Error was thrown";  // said here, so that an empty part matches no less
  return {};
}

}  // namespace qkv::testing

#define EXPECT_ERROR(part, ...)                     \
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, \
                      ::qkv::testing::error_of([&] { static_cast<void>(__VA_ARGS__); }))

// The SIMD targets that tests walk over.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "qkv/cpu.h"

namespace qkv::test {

// All that the machine has. Under a sanitizer, which makes everything ten times slower, the best
// one: the others run the same source in other widths, and hardly any is built
// (cmake/QkvCpuTargets.cmake).
inline std::vector<std::string> tested_targets() {
  std::vector<std::string> targets = cpu_targets();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  targets.resize(1);
#endif
  return targets;
}

// body() with each of them in use; ends with the first that fails.
template <class Body>
void on_every_target(Body body) {
  const std::string before = cpu_target();
  for (const std::string& target : tested_targets()) {
    SCOPED_TRACE(target);
    set_cpu_target(target);
    body();
    if (::testing::Test::HasFailure()) break;
  }
  set_cpu_target(before);
}

}  // namespace qkv::test

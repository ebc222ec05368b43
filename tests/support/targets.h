// The SIMD targets that tests walk over.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "qkv/cpu.h"

namespace qkv::test {

// Whether the best target is enough. Under a sanitizer, which makes everything ten times slower, it
// is: the others run the same source in other widths, and hardly any is built
// (cmake/QkvCpuTargets.cmake).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline bool best_target_only = true;
#else
inline bool best_target_only = false;
#endif

// All that the machine has.
inline std::vector<std::string> tested_targets() {
  std::vector<std::string> targets = cpu_targets();
  if (best_target_only) targets.resize(1);
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

// The devices that tests walk over.
#pragma once

#include <vector>

#include "support/attention_check.h"

namespace qkv::test {

inline constexpr Device kGpu{DeviceType::cuda, 0};

// All that this run is for.
inline std::vector<Device> devices() {
  std::vector<Device> all;
  if (tests_run_on(DeviceType::cpu)) all.push_back(kCpu);
  if (tests_run_on(DeviceType::cuda)) all.push_back(kGpu);
  return all;
}

}  // namespace qkv::test

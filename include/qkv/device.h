// Where a tensor's bytes live.
#pragma once

#include <cstdint>
#include <string>

namespace qkv {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCpu{};

// "cpu", "cuda:0"
std::string to_string(Device device);

// Waits until everything that was asked of the device is done: for whoever times it. Results need
// no waiting for.
void synchronize(Device device);

}  // namespace qkv

// The tile registers of AMX: their configuration, and asking the system for them. x86 only.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace qkv::cpu {

// Eight tiles of 16 rows by 64 bytes, unless said otherwise. Not for locals: GCC's intrinsic names
// only its first bytes as read, and the rest would be dropped.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Linux hands out the tile registers on request (and not at all to sandboxes that forbid it).
inline bool request_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace qkv::cpu

#include "npy.h"

#include <fmt/format.h>

#include <bit>

#include "io/file.h"

namespace qkv::cli {

void save_npy(const std::string& path, std::span<const float> values, std::int64_t rows,
              std::int64_t columns) {
  static_assert(std::endian::native == std::endian::little);
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic, version, the header's length in two bytes; data begin at a multiple of 64.
  constexpr std::size_t kBefore = 10, kAlignment = 64;
  const std::size_t unpadded = kBefore + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header += '\n';
  std::string start("\x93NUMPY\x01\x00", 8);
  start += static_cast<char>(header.size() & 0xFF);
  start += static_cast<char>(header.size() >> 8);
  start += header;
  write_file_atomically(path, [&](const FileSink& sink) {
    sink(std::as_bytes(std::span(start)));
    sink(std::as_bytes(values));
  });
}

}  // namespace qkv::cli

// NumPy's file of one array, format 1.0: numpy.load(path) gives it back.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace qkv::cli {

// A table of f32, written whole or not at all; values are row by row.
void save_npy(const std::string& path, std::span<const float> values, std::int64_t rows,
              std::int64_t columns);

}  // namespace qkv::cli

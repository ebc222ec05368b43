// A text file in tokens: from the cache, or made now.
#pragma once

#include <functional>
#include <string>

#include "io/token_file.h"
#include "train/data_encode.h"

namespace qkv::data {

// Bytes of a text file that were tokenised.
using Report = std::function<void(std::uint64_t bytes)>;

// `cache` is a folder, or empty. Report is called on this thread.
TokenFile tokenize_file(const TextFile& file, const Encoder& encoder, const std::string& cache,
                        const Report& report);

}  // namespace qkv::data

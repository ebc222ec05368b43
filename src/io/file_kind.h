// What a file is that was meant to be another.
#pragma once

#include <string>
#include <string_view>

namespace qkv {

// By its first bytes: "a GGUF file", "a Git LFS pointer in place of the file; fetch it with `git
// lfs pull`", "a text file"; "" for bytes that nothing is known of.
std::string file_kind(std::string_view bytes);

// Whether the bytes are what Git LFS leaves where the real file was not fetched.
bool is_lfs_pointer(std::string_view bytes);

}  // namespace qkv

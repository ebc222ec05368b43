// Whole files, read and written at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace qkv {

// How the names of what is not finished begin; a process that is killed leaves it behind.
inline constexpr const char* kUnfinished = ".qkv-";

// The bytes of a regular file. Throws Error with the path and the reason, also when there are more
// than `most` of them, before any is read.
std::string read_file(const std::string& path, std::uint64_t most);

// Readers see the old file or the new one, never a part: the bytes go to a temporary name in the
// same folder, reach the disk and are renamed. Throws Error with the path and the reason; then the
// old file is as it was and the temporary one is gone.
void write_file_atomically(const std::string& path, std::string_view bytes);

// The same for content too large to hold: `content` is called once and hands its bytes, in order,
// to the sink it is given. What it throws undoes the file.
using FileSink = std::function<void(std::span<const std::byte>)>;
void write_file_atomically(const std::string& path,
                           const std::function<void(const FileSink&)>& content);

}  // namespace qkv

#include "io/file_kind.h"

#include <algorithm>
#include <cctype>

#include "io/shown.h"

namespace qkv {
namespace {

struct Signature {
  std::string_view begin, kind;
};

using namespace std::string_view_literals;

// Longer beginnings before those they begin with.
constexpr Signature kSignatures[] = {
    {"PK\x03\x04",
     "a PyTorch file or another zip archive; convert weights with "
     "safetensors.torch.save_file"},
    {"\x80\x02", "a PyTorch file (a pickle); convert it with safetensors.torch.save_file"},
    {"\x80\x03", "a Python pickle; convert weights with safetensors.torch.save_file"},
    {"\x80\x04", "a Python pickle; convert weights with safetensors.torch.save_file"},
    {"\x80\x05", "a Python pickle; convert weights with safetensors.torch.save_file"},
    {"GGUF", "a GGUF file"},
    {"\x89HDF\r\n", "an HDF5 file"},
    {"\x93NUMPY", "a NumPy file"},
    {"\x1f\x8b", "a gzip archive; unpack it first"},
    {"BZh", "a bzip2 archive; unpack it first"},
    {"\xfd"
     "7zXZ",
     "an xz archive; unpack it first"},
    {"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"},
    {"7z\xbc\xaf", "a 7z archive; unpack it first"},
    {"\x89PNG", "a PNG image"},
    {"\xff\xd8\xff", "a JPEG image"},
    {"GIF8", "a GIF image"},
    {"%PDF", "a PDF"},
    {"\x7f"
     "ELF",
     "a program"},
    {"#!", "a script"},
};

bool begins_html(std::string_view bytes) {
  std::string start(bytes.substr(0, 64));
  std::transform(start.begin(), start.end(), start.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  start.erase(0, start.find_first_not_of(" \t\r\n"));
  return start.starts_with("<!doctype html") || start.starts_with("<html");
}

// Whole lines of UTF-8; what the limit cuts off at the end may be half a character.
bool is_text(std::string_view bytes) {
  constexpr std::size_t kLooked = 512, kLongestCharacter = 4;
  std::string_view start = bytes.substr(0, kLooked);
  std::string shown = shown_text(start);
  if (bytes.size() > kLooked) start.remove_suffix(kLongestCharacter);
  shown.resize(start.size());
  std::string given(start);
  std::replace(given.begin(), given.end(), '\r', '?');
  return shown == given;
}

}  // namespace

bool is_lfs_pointer(std::string_view bytes) {
  return bytes.starts_with("version https://git-lfs.github.com/");
}

std::string file_kind(std::string_view bytes) {
  if (bytes.empty()) return "an empty file";
  if (is_lfs_pointer(bytes)) {
    return "a Git LFS pointer in place of the file; fetch it with `git lfs pull`";
  }
  for (const Signature& s : kSignatures) {
    if (bytes.starts_with(s.begin)) return std::string(s.kind);
  }
  constexpr std::size_t kTarMagic = 257;
  if (bytes.size() > kTarMagic && bytes.substr(kTarMagic).starts_with("ustar")) {
    return "a tar archive; unpack it first";
  }
  if (begins_html(bytes)) return "an HTML page, as a failed download leaves";
  if (!is_text(bytes)) return "";
  const std::size_t first = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size() - 1);
  return bytes[first] == '{' || bytes[first] == '[' ? "a JSON file" : "a text file";
}

}  // namespace qkv

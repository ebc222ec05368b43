// The text of a file, in chunks that threads can take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/data.h"

namespace qkv::data {

struct TextChunk {
  std::string_view text;
  // Of running text: false where a document goes on from, or in, a neighbour.
  bool begins = true, ends = true;
};

// A text file, mapped; or a .json list of texts, read.
class TextFile {
 public:
  // Where a chunk may end: behind a line, or behind an empty one; or a chunk is part of the only
  // document. What a .json list says is a document each.
  TextFile(std::string path, Documents chunks_of);

  const std::string& path() const { return path_; }
  bool is_list() const { return is_list_; }  // a chunk is a document, or part of one
  const std::vector<TextChunk>& chunks() const { return chunks_; }
  std::uint64_t bytes() const { return bytes_; }
  std::filesystem::file_time_type changed() const { return changed_; }
  std::uint64_t hash() const;  // of all bytes

  // Of a place in one of the chunks: bytes before it in the file, and "file.tsv:12" for messages.
  std::uint64_t offset(const char* place) const;
  std::string where(const char* place) const;

 private:
  void cut_text(std::string_view text, Documents chunks_of);

  std::string path_;
  bool is_list_ = false;
  std::shared_ptr<const void> owner_;
  std::string_view content_;
  std::vector<std::string> texts_;
  std::vector<TextChunk> chunks_;
  std::uint64_t bytes_ = 0;
  std::filesystem::file_time_type changed_{};
};

// Pieces of a document that are tokenised at once: long ones are cut, at the end of a line if there
// is one, so that memory stays bounded.
std::vector<std::string_view> pieces_of(std::string_view document);

// Calls f(line) for every line of the text, without its end (LF or CR LF).
template <class F>
void for_each_line(std::string_view text, F&& f) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Calls f(document) for every run of lines that are not empty, without the end of its last line.
template <class F>
void for_each_paragraph(std::string_view text, F&& f) {
  const char* begin = nullptr;
  const char* end = nullptr;
  for_each_line(text, [&](std::string_view line) {
    if (!line.empty() && begin == nullptr) begin = line.data();
    if (!line.empty()) end = line.data() + line.size();
    if (line.empty() && begin != nullptr) f(std::string_view(begin, end - begin));
    if (line.empty()) begin = nullptr;
  });
  if (begin != nullptr) f(std::string_view(begin, end - begin));
}

// The columns of a line, with tabs between them.
std::vector<std::string_view> columns_of(std::string_view line);

}  // namespace qkv::data

#include "train/data_text.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "io/json_texts.h"
#include "io/mapped_file.h"
#include "text/hash.h"
#include "text/utf8.h"

namespace qkv::data {
namespace {

// Large enough to keep a thread busy, small enough that there is one for each.
constexpr std::size_t kChunk = std::size_t{1} << 18;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// The end of the first line that ends at or behind `from`; with `empty`, of the first empty line.
std::size_t line_end(std::string_view text, std::size_t from, bool empty) {
  std::size_t end = text.find('\n', from);
  while (empty && end != text.npos) {
    const std::size_t next = end + 1;
    if (next < text.size() && text[next] == '\n') return next + 1;
    if (text.substr(next).starts_with("\r\n")) return next + 2;
    end = text.find('\n', next);
  }
  return end == text.npos ? text.size() : end + 1;
}

// Where a piece of at most kChunk bytes should end.
std::size_t piece_end(std::string_view text) {
  if (text.size() <= kChunk) return text.size();
  for (const char at : {'\n', ' '}) {
    const std::size_t found = text.rfind(at, kChunk - 1);
    // A space belongs to the word behind it, a line end to the line before.
    if (found != text.npos && found > 0) return at == '\n' ? found + 1 : found;
  }
  std::size_t end = kChunk;  // a single word: between two characters
  while (end > 1 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

}  // namespace

std::vector<std::string_view> pieces_of(std::string_view document) {
  std::vector<std::string_view> pieces;
  while (!document.empty()) {
    const std::size_t end = piece_end(document);
    pieces.push_back(document.substr(0, end));
    document.remove_prefix(end);
  }
  return pieces;
}

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> columns;
  for (std::size_t tab; (tab = line.find('\t')) != line.npos; line.remove_prefix(tab + 1)) {
    columns.push_back(line.substr(0, tab));
  }
  columns.push_back(line);
  return columns;
}

TextFile::TextFile(std::string path, Documents chunks_of) : path_(std::move(path)) {
  std::error_code ignored;  // a file that is not there is an Error of the next line
  changed_ = std::filesystem::last_write_time(path_, ignored);
  const std::shared_ptr<const MappedFile> mapped = MappedFile::open(path_);
  content_ = {reinterpret_cast<const char*>(mapped->data()), mapped->size()};
  bytes_ = content_.size();
  owner_ = mapped;
  check(!content_.empty(), "{}: the file is empty", path_);
  is_list_ = path_.ends_with(".json");
  if (is_list_) {
    texts_ = parse_json_texts(content_, path_);
    for (const std::string& text : texts_) {
      if (!text.empty()) cut_text(text, Documents::file);
    }
  } else {
    const bool marked = content_.starts_with(kByteOrderMark);
    cut_text(content_.substr(marked ? kByteOrderMark.size() : 0), chunks_of);
  }
}

void TextFile::cut_text(std::string_view text, Documents chunks_of) {
  if (chunks_of == Documents::file) {
    const auto pieces = pieces_of(text);
    for (const std::string_view piece : pieces) {
      chunks_.push_back(
          {piece, piece.data() == pieces.front().data(), piece.data() == pieces.back().data()});
    }
    return;
  }
  while (!text.empty()) {
    const std::size_t end = text.size() <= kChunk
                                ? text.size()
                                : line_end(text, kChunk, chunks_of == Documents::paragraph);
    chunks_.push_back({text.substr(0, end)});
    text.remove_prefix(end);
  }
}

std::uint64_t TextFile::hash() const { return text::hash_of(content_); }

std::uint64_t TextFile::offset(const char* place) const {
  return static_cast<std::uint64_t>(place - content_.data());
}

std::string TextFile::where(const char* place) const {
  if (is_list_) return path_;
  return fmt::format("{}:{}", path_, std::count(content_.data(), place, '\n') + 1);
}

}  // namespace qkv::data

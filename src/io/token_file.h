// Token ids of a text file, kept in a file of their own that is mapped: tokenised once, read often.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qkv {

// One example: its tokens, source before target, and the line it was made of.
struct TokenRecord {
  std::uint64_t first = 0;  // where its tokens begin
  std::uint64_t line = 0;   // where its line begins in the text file, in bytes
  std::uint32_t line_bytes = 0;
  std::uint32_t source = 0, target = 0;  // tokens
  std::int32_t label = -1;               // of a classifier
  friend bool operator==(const TokenRecord&, const TokenRecord&) = default;
};

// Part of what a text file becomes. Records count from the first token of their part; running text
// has none.
struct TokenPart {
  std::vector<std::int32_t> tokens{};
  std::vector<TokenRecord> records{};
  std::uint64_t examples = 0, left_out = 0;
};
// Calls the sink with the parts, in order.
using TokenSink = std::function<void(const TokenPart&)>;
using TokenSource = std::function<void(const TokenSink&)>;

// What was mapped or is held in memory; copies share it.
class TokenFile {
 public:
  // Nothing when there is no such file, when it was made for another key, or when it is not as it
  // was written, which takes reading all of it.
  // Every record lies within the tokens; whether these are ids of the vocabulary is the reader's to
  // check when it reads them.
  static std::optional<TokenFile> open(const std::string& path, std::string_view key);
  // Writes it whole or not at all, replacing what is there.
  static void write(const std::string& path, std::string_view key, const TokenSource& source);
  static TokenFile in_memory(const TokenSource& source);

  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::span<const TokenRecord> records() const { return records_; }
  std::uint64_t examples() const { return examples_; }
  std::uint64_t left_out() const { return left_out_; }
  std::uint64_t checksum() const { return checksum_; }  // of tokens and records, in a file or not

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::int32_t> tokens_;
  std::span<const TokenRecord> records_;
  std::uint64_t examples_ = 0, left_out_ = 0, checksum_ = 0;
};

}  // namespace qkv

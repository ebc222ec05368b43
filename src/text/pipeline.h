// What a Tokenizer is made of.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/tokenizer.h"
#include "text/vocabulary.h"

namespace qkv {

// Two kinds: what a tokenizer.json describes, and what a sentencepiece model does.
struct Tokenizer::Pipeline {
  virtual ~Pipeline() = default;

  // Tokens of one text, without anything around them. With `spans`, where each came from; then the
  // encoding has as many spans as ids.
  virtual void encode(std::string_view text, bool spans, Encoding& result) const = 0;
  // Puts together one or two texts and what the template has around them.
  virtual Encoding surround(Encoding first, std::optional<Encoding> second,
                            bool special_tokens) const = 0;
  virtual std::size_t special_tokens(bool of_pair) const = 0;  // how many surround() adds
  virtual std::string decode(std::span<const std::int64_t> ids,
                             const DecodeOptions& options) const = 0;

  // True when after a token nothing more can be said of the text: what it reads as depends on the
  // ones that follow, or it is left out, so that those before it may still depend on them.
  virtual bool is_open_ended(std::int64_t id, const DecodeOptions& options) const = 0;

  virtual std::int64_t size() const = 0;
  virtual std::optional<std::int64_t> id(std::string_view token) const = 0;
  virtual std::string token(std::int64_t id) const = 0;  // of an id below size()
  virtual bool is_special(std::int64_t id) const = 0;
  virtual std::optional<std::int64_t> unknown_id() const = 0;
  virtual std::string kind() const = 0;
  virtual std::string to_json() const = 0;
  // Differs between tokenizers that differ: what was tokenised is known by it.
  virtual std::uint64_t fingerprint() const = 0;
};

}  // namespace qkv

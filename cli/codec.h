// What a prompt becomes, and what becomes of the tokens that follow it: by the model's tokenizer,
// by the characters its config lists, or as the ids themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/models/model.h"

namespace qkv::cli {

// Text as it grows, token by token.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(std::int64_t id) = 0;  // what became certain
  virtual std::string finish() = 0;               // what was held back
};

class Codec {
 public:
  virtual ~Codec() = default;
  // Never empty: Error when there is nothing to begin with.
  virtual std::vector<std::int64_t> encode(const std::string& prompt) const = 0;
  // What an encoder-decoder writes, its end included.
  virtual std::vector<std::int64_t> encode_target(const std::string& text) const {
    return encode(text);
  }
  // Of what follows the prompt.
  virtual std::unique_ptr<TextStream> stream(const std::vector<std::int64_t>& prompt) const = 0;
  // The token a stop names when it never shows in the text: "<|im_end|>", or any where text is ids.
  virtual std::optional<std::int64_t> stop_id(const std::string& stop) const = 0;
  // Whether what ends a reply belongs to its text, as an id among ids does.
  virtual bool shows_end() const { return false; }
  // One token by itself, of what is read or of what is written.
  enum class Side : std::uint8_t { input, output };
  virtual std::string token(std::int64_t id, Side side) const = 0;
  // What stands for a gap to be filled; -1 = nothing.
  virtual std::int64_t mask_id() const { return -1; }

  std::string text(const std::vector<std::int64_t>& written) const;
};

// As ids when `ids_only`; else by what the folder and the model have.
std::unique_ptr<Codec> make_codec(const std::string& folder, const ModelInfo& info, bool ids_only);

// "1, 2 3": ids separated by spaces or commas.
std::vector<std::int64_t> parse_ids(const std::string& text, std::int64_t vocabulary);

}  // namespace qkv::cli

// What a sentencepiece .model file says: a protocol buffer, read with bounds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::text {

struct SentencePieceModel {
  enum class Type : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };
  enum class Algorithm : std::uint8_t { unigram = 1, bpe };

  std::string name;  // in messages
  std::vector<Piece> pieces;
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false, space_is_suffix = false;
  std::string unknown_surface = " \xE2\x81\x87 ";  // how an unknown token reads

  std::string charsmap;
  bool add_dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;

  // Throw Error unless it is such a file, of a kind that is supported.
  static SentencePieceModel read(const std::string& path);
  static SentencePieceModel parse(std::string_view bytes, const std::string& name);
};

}  // namespace qkv::text

#include "text/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <new>

#include "core/check.h"
#include "io/file.h"
#include "io/shown.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace qkv::text {
namespace {

// The fields of one message, in the wire format of protocol buffers.
class Message {
 public:
  Message(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  struct Field {
    std::uint64_t number = 0, wire = 0, integer = 0;
    std::string_view bytes;

    bool flag() const { return integer != 0; }
    float real() const { return std::bit_cast<float>(static_cast<std::uint32_t>(integer)); }
  };

  // False at the end.
  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    field = {key >> 3, key & 7, 0, {}};
    switch (field.wire) {
      case 0: field.integer = varint(); break;
      case 1: field.integer = fixed(8); break;
      case 2: {
        const std::uint64_t size = varint();
        check(size <= bytes_.size(), "{}: a field of {} bytes where {} are left", name_, size,
              bytes_.size());
        field.bytes = bytes_.substr(0, size);
        bytes_.remove_prefix(size);
        break;
      }
      case 5: field.integer = fixed(4); break;
      default: fail("{}: not a sentencepiece model (wire type {})", name_, field.wire);
    }
    return true;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      check(!bytes_.empty(), "{}: the file ends within a number", name_);
      const auto byte = static_cast<unsigned char>(bytes_[0]);
      bytes_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    fail("{}: a number is longer than ten bytes", name_);
  }

  std::uint64_t fixed(std::size_t size) {
    check(bytes_.size() >= size, "{}: the file ends within a number", name_);
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes_[i]);
    bytes_.remove_prefix(size);
    return value;
  }

  std::string_view bytes_;
  const std::string& name_;
};

class Parser {
 public:
  explicit Parser(SentencePieceModel& model) : model_(model) {}

  void parse(std::string_view bytes) {
    Message message(bytes, model_.name);
    for (Message::Field field; message.next(field);) {
      if (field.wire != 2) continue;
      if (field.number == 1) piece(field.bytes);
      if (field.number == 2) trainer(field.bytes);
      if (field.number == 3) normalization(field.bytes, model_.normalizer);
      if (field.number == 5) normalization(field.bytes, model_.denormalizer);
    }
    check(!model_.pieces.empty(), "{}: not a sentencepiece model, there are no pieces in it",
          model_.name);
  }

 private:
  void piece(std::string_view bytes) {
    SentencePieceModel::Piece piece;
    Message message(bytes, model_.name);
    for (Message::Field field; message.next(field);) {
      if (field.number == 1 && field.wire == 2) piece.text = field.bytes;
      if (field.number == 2 && field.wire == 5) piece.score = field.real();
      if (field.number == 3 && field.wire == 0) {
        check(field.integer >= 1 && field.integer <= 6, "{}: piece {} is of the unknown type {}",
              model_.name, model_.pieces.size(), field.integer);
        piece.type = static_cast<SentencePieceModel::Type>(field.integer);
      }
    }
    const std::size_t index = model_.pieces.size();
    check(!piece.text.empty(), "{}: piece {} is empty", model_.name, index);
    check(is_valid_utf8(piece.text), "{}: piece {} is not UTF-8", model_.name, index);
    check(std::isfinite(piece.score), "{}: the score of piece {} is not finite", model_.name,
          index);
    check(index <= kLargestId, "{}: more than {} pieces", model_.name, kLargestId);
    model_.pieces.push_back(std::move(piece));
  }

  void trainer(std::string_view bytes) {
    Message message(bytes, model_.name);
    for (Message::Field field; message.next(field);) {
      if (field.number == 3 && field.wire == 0) {
        check(field.integer == 1 || field.integer == 2,
              "{}: model_type {} is not supported; supported are unigram (1) and BPE (2)",
              model_.name, field.integer);
        model_.algorithm = static_cast<SentencePieceModel::Algorithm>(field.integer);
      }
      if (field.number == 24 && field.wire == 0) model_.space_is_suffix = field.flag();
      if (field.number == 35 && field.wire == 0) model_.byte_fallback = field.flag();
      if (field.number == 44 && field.wire == 2) model_.unknown_surface = field.bytes;
    }
    check(is_valid_utf8(model_.unknown_surface), "{}: unk_surface is not UTF-8", model_.name);
  }

  void normalization(std::string_view bytes, SentencePieceModel::Normalization& result) {
    Message message(bytes, model_.name);
    for (Message::Field field; message.next(field);) {
      if (field.number == 2 && field.wire == 2) result.charsmap = field.bytes;
      if (field.number == 3 && field.wire == 0) result.add_dummy_prefix = field.flag();
      if (field.number == 4 && field.wire == 0) result.remove_extra_spaces = field.flag();
      if (field.number == 5 && field.wire == 0) result.escape_spaces = field.flag();
    }
  }

  SentencePieceModel& model_;
};

}  // namespace

SentencePieceModel SentencePieceModel::read(const std::string& path) {
  return parse(read_file(path, kLargestFile), path);
}

SentencePieceModel SentencePieceModel::parse(std::string_view bytes, const std::string& name) try {
  SentencePieceModel model;
  model.name = name;
  Parser(model).parse(bytes);
  return model;
} catch (const std::bad_alloc&) {
  fail<OutOfMemory>("{}: out of memory", name);
}

}  // namespace qkv::text

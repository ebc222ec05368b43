#include "text/sentencepiece_pipeline.h"

#include <limits>

#include "core/check.h"
#include "io/shown.h"
#include "text/hash.h"
#include "text/metaspace.h"
#include "text/model.h"
#include "text/sentencepiece_json.h"
#include "text/utf8.h"

namespace qkv::text {

using Type = SentencePieceModel::Type;

PieceTable::PieceTable(const SentencePieceModel& model)
    : ordinary(model.name), reserved(model.name) {
  for (TokenId id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    const bool is_ordinary = piece.type == Type::normal || piece.type == Type::user_defined ||
                             piece.type == Type::unused;
    Vocabulary& table = is_ordinary ? ordinary : reserved;
    check(table.find(piece.text) == kNoToken, "{}: the piece '{}' appears twice", model.name,
          shown_name(piece.text));
    table.add(piece.text, id);
    if (piece.type == Type::unknown) {
      check(unknown == kNoToken, "{}: there are two unknown pieces", model.name);
      unknown = id;
    }
    check(piece.type != Type::byte || (model.byte_fallback && byte_of_token(piece.text) >= 0),
          "{}: '{}' is no byte piece, or byte_fallback is not set", model.name,
          shown_name(piece.text));
  }
  check(unknown != kNoToken, "{}: there is no unknown piece", model.name);
}

TokenId PieceTable::id(std::string_view piece) const {
  if (const TokenId id = reserved.find(piece); id != kNoToken) return id;
  const TokenId id = ordinary.find(piece);
  return id == kNoToken ? unknown : id;
}

SentencePiecePipeline::SentencePiecePipeline(SentencePieceModel model)
    : model_(std::move(model)),
      pieces_(model_),
      normalizer_(model_, model_.normalizer),
      denormalizer_(model_, model_.denormalizer) {
  encoder_ = model_.algorithm == SentencePieceModel::Algorithm::unigram
                 ? make_unigram_encoder(model_, pieces_)
                 : make_bpe_encoder(model_, pieces_);
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes_[byte] = pieces_.reserved.find(byte_token(static_cast<unsigned char>(byte)));
    check(!model_.byte_fallback || bytes_[byte] != kNoToken,
          "{}: byte_fallback needs a piece for every byte, {} is missing", model_.name,
          byte_token(static_cast<unsigned char>(byte)));
  }
}

void SentencePiecePipeline::encode(std::string_view text, bool spans, Encoding& result) const {
  check(text.size() < std::numeric_limits<std::int32_t>::max() / 4,
        "a text of {} bytes is too long to tokenize at once", text.size());
  AlignedText given;
  const bool repair = !is_valid_utf8(text);
  if (repair) {
    given.tracked = true;
    given.append_given(text, 0);
  }
  const WorkspacePool::Loan loan(workspaces_);
  Workspace& work = *loan;
  NormalizedText normalized;
  work.allowance = Allowance(text.size());
  normalizer_.apply(repair ? std::string_view(given.text) : text, spans, normalized,
                    work.allowance);
  work.tokens.clear();
  encoder_->encode(normalized.text, spans, work, work.tokens);
  bool after_unknown = false;
  for (const Token& token : work.tokens) {
    append(token, normalized, spans, after_unknown, result);
    after_unknown = token.id == pieces_.unknown;
  }
  if (!repair) return;
  const auto place = [&](std::size_t at) -> std::size_t {
    return at < given.from.size() ? given.from[at].begin : text.size();
  };
  for (TokenSpan& span : result.spans) span = {place(span.begin), place(span.end)};
}

void SentencePiecePipeline::append(const Token& token, const NormalizedText& normalized, bool spans,
                                   bool continues, Encoding& result) const {
  const auto span = [&]() -> TokenSpan {
    return {normalized.from[token.begin], normalized.from[token.end]};
  };
  if (token.id != pieces_.unknown) {
    result.ids.push_back(token.id);
    if (spans) result.spans.push_back(span());
    return;
  }
  if (model_.byte_fallback) {  // the last byte stands for the character, the others for nothing
    for (std::uint32_t i = token.begin; i < token.end; ++i) {
      result.ids.push_back(bytes_[static_cast<unsigned char>(normalized.text[i])]);
      if (!spans) continue;
      const TokenSpan all = span();
      result.spans.push_back(i + 1 == token.end ? all : TokenSpan{all.begin, all.begin});
    }
    return;
  }
  if (continues) {  // a run of unknown characters is one token
    if (spans) result.spans.back().end = span().end;
    return;
  }
  result.ids.push_back(token.id);
  if (spans) result.spans.push_back(span());
}

Encoding SentencePiecePipeline::surround(Encoding first, std::optional<Encoding> second,
                                         bool /*special_tokens*/) const {
  first.type_ids.assign(first.ids.size(), 0);
  if (second) {
    first.ids.insert(first.ids.end(), second->ids.begin(), second->ids.end());
    first.spans.insert(first.spans.end(), second->spans.begin(), second->spans.end());
    first.type_ids.resize(first.ids.size(), 1);
  }
  first.is_special.assign(first.ids.size(), 0);
  return first;
}

// What a piece that is no byte reads as; took_space: it gave up a space at the start of the text.
std::string SentencePiecePipeline::surface(std::int64_t id, bool at_start,
                                           const DecodeOptions& options, bool& took_space) const {
  took_space = false;
  const auto& piece = this->piece(id);
  if (piece.type == Type::control) return options.skip_special ? "" : piece.text;
  if (piece.type == Type::unknown) return model_.unknown_surface;
  std::string_view rest = piece.text;
  if (at_start && (model_.normalizer.add_dummy_prefix || model_.normalizer.remove_extra_spaces)) {
    took_space = rest.starts_with(kMetaspace) && !model_.normalizer.remove_extra_spaces;
    if (rest.starts_with(kMetaspace)) rest.remove_prefix(kMetaspace.size());
  }
  std::string text;
  for (std::size_t at = 0; at < rest.size();) {
    const std::size_t space = std::min(rest.find(kMetaspace, at), rest.size());
    text += rest.substr(at, space - at);
    if (space < rest.size()) text += ' ';
    at = space + kMetaspace.size();
  }
  return text;
}

std::string SentencePiecePipeline::decode(std::span<const std::int64_t> ids,
                                          const DecodeOptions& options) const {
  std::string text, bytes;
  const auto flush = [&] {  // each byte that is no part of a character is one U+FFFD
    for (std::string_view rest = bytes; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      text += step.valid ? rest.substr(0, step.size) : kReplacement;
      rest.remove_prefix(step.valid ? step.size : 1);
    }
    bytes.clear();
  };
  bool at_start = true, took_space = false;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= size()) continue;
    if (piece(id).type == Type::byte) {
      bytes.push_back(static_cast<char>(byte_of_token(piece(id).text)));
      continue;
    }
    flush();
    if (took_space || !text.empty()) at_start = false;
    check_decoded(text.size() + piece(id).text.size() + model_.unknown_surface.size(), ids.size(),
                  model_.name);
    text += surface(id, at_start, options, took_space);
  }
  flush();
  if (model_.denormalizer.charsmap.empty()) return text;
  NormalizedText denormalized;
  Allowance allowance(text.size());
  denormalizer_.apply(text, false, denormalized, allowance);
  return denormalized.text;
}

std::optional<std::int64_t> SentencePiecePipeline::id(std::string_view token) const {
  const TokenId id = pieces_.id(token);
  if (id == pieces_.unknown && model_.pieces[id].text != token) return {};
  return id;
}

bool SentencePiecePipeline::is_special(std::int64_t id) const {
  return piece(id).type == Type::control || piece(id).type == Type::unknown;
}

std::string SentencePiecePipeline::kind() const {
  return model_.algorithm == SentencePieceModel::Algorithm::unigram ? "sentencepiece unigram"
                                                                    : "sentencepiece BPE";
}

std::uint64_t SentencePiecePipeline::fingerprint() const {
  const auto rules = [](const SentencePieceModel::Normalization& n) {
    return fmt::format("{:x} {} {} {}", hash_of(n.charsmap), n.add_dummy_prefix,
                       n.remove_extra_spaces, n.escape_spaces);
  };
  std::uint64_t hash =
      hash_of(fmt::format("{} {} {} {} {} {}", static_cast<int>(model_.algorithm),
                          model_.byte_fallback, model_.space_is_suffix, model_.unknown_surface,
                          rules(model_.normalizer), rules(model_.denormalizer)));
  for (const SentencePieceModel::Piece& piece : model_.pieces) {
    hash = mixed(hash ^ hash_of(fmt::format("{} {} {}", piece.text, piece.score,
                                            static_cast<int>(piece.type))));
  }
  return hash;
}

std::string SentencePiecePipeline::to_json() const { return sentencepiece_to_json(model_); }

}  // namespace qkv::text

// A tokenizer as a sentencepiece model describes it.
#pragma once

#include <array>

#include "text/pipeline.h"
#include "text/sentencepiece_encoder.h"

namespace qkv::text {

class SentencePiecePipeline final : public Tokenizer::Pipeline {
 public:
  explicit SentencePiecePipeline(SentencePieceModel model);

  void encode(std::string_view text, bool spans, Encoding& result) const override;
  // sentencepiece adds nothing; what a model wants around its text, a tokenizer.json says.
  Encoding surround(Encoding first, std::optional<Encoding> second,
                    bool special_tokens) const override;
  std::size_t special_tokens(bool /*of_pair*/) const override { return 0; }
  std::string decode(std::span<const std::int64_t> ids,
                     const DecodeOptions& options) const override;

  bool is_open_ended(std::int64_t /*id*/, const DecodeOptions& /*options*/) const override {
    return false;
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(model_.pieces.size()); }
  std::optional<std::int64_t> id(std::string_view token) const override;
  std::string token(std::int64_t id) const override { return piece(id).text; }
  bool is_special(std::int64_t id) const override;
  std::optional<std::int64_t> unknown_id() const override { return pieces_.unknown; }
  std::string kind() const override;
  std::string to_json() const override;
  std::uint64_t fingerprint() const override;

 private:
  const SentencePieceModel::Piece& piece(std::int64_t id) const {
    return model_.pieces[static_cast<std::size_t>(id)];
  }
  void append(const Token& token, const NormalizedText& normalized, bool spans, bool continues,
              Encoding& result) const;
  std::string surface(std::int64_t id, bool at_start, const DecodeOptions& options,
                      bool& took_space) const;

  SentencePieceModel model_;
  PieceTable pieces_;
  SentencePieceNormalizer normalizer_, denormalizer_;
  std::unique_ptr<const SentencePieceEncoder> encoder_;
  std::array<TokenId, 256> bytes_{};
  mutable WorkspacePool workspaces_;
};

}  // namespace qkv::text

// A tokenizer as tokenizer.json describes it.
#pragma once

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/pipeline.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/workspace.h"

namespace qkv::text {

class JsonPipeline final : public Tokenizer::Pipeline {
 public:
  // Throws Error that names what is wrong or not supported.
  explicit JsonPipeline(TokenizerFile file);

  void encode(std::string_view text, bool spans, Encoding& result) const override;
  Encoding surround(Encoding first, std::optional<Encoding> second,
                    bool special_tokens) const override;
  std::size_t special_tokens(bool of_pair) const override {
    return post_processor_.special_tokens(of_pair);
  }
  std::string decode(std::span<const std::int64_t> ids,
                     const DecodeOptions& options) const override;

  bool is_open_ended(std::int64_t id, const DecodeOptions& options) const override;

  std::int64_t size() const override;
  std::optional<std::int64_t> id(std::string_view token) const override;
  std::string token(std::int64_t id) const override;
  bool is_special(std::int64_t id) const override;
  std::optional<std::int64_t> unknown_id() const override;
  std::string kind() const override { return model_->kind(); }
  std::string to_json() const override { return file_.to_json(); }
  std::uint64_t fingerprint() const override;

 private:
  // A token that was looked for, or a text between such tokens.
  void encode_segment(std::string_view text, std::size_t offset, Workspace& work,
                      Encoding& result) const;
  void encode_words(Workspace& work, Encoding& result) const;
  void add_outer_spaces(std::string_view token, Workspace& work) const;
  // How a token reads before the decoder; none where it is left out.
  std::optional<std::string_view> written(std::int64_t id, const DecodeOptions& options) const;

  TokenizerFile file_;  // for to_json
  NormalizerPtr normalizer_;
  PreTokenizerPtr pre_tokenizer_;
  ModelPtr model_;
  AddedTokens added_;
  PostProcessor post_processor_;
  DecoderPtr decoder_;
  bool needs_origins_ = false;  // even where nobody asks for spans
  mutable WorkspacePool workspaces_;
};

// The model of a tokenizer.json; `byte_level`: its words come as bytes.
ModelPtr make_model(const TokenizerFile& file, bool byte_level);

}  // namespace qkv::text

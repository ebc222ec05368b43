#include "text/settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/check.h"
#include "text/metaspace.h"

namespace qkv::text {
namespace {

using Json = nlohmann::ordered_json;

std::optional<TokenId> id_of(const VocabularyEntries& vocabulary, std::string_view token) {
  const auto found = std::ranges::find(vocabulary, token, &TokenizerFile::Entry::token);
  if (found == vocabulary.end()) return {};
  return found->id;
}

// Entries of added_tokens for those of these that the vocabulary has.
Json special_tokens(const VocabularyEntries& vocabulary,
                    std::initializer_list<std::string_view> tokens) {
  Json list = Json::array();
  for (const std::string_view token : tokens) {
    const auto id = id_of(vocabulary, token);
    if (!id) continue;
    list.push_back({{"id", *id},
                    {"content", token},
                    {"single_word", false},
                    {"lstrip", token == "<mask>"},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", true}});
  }
  return list;
}

// The same for tokens whose ids are their places.
Json first_tokens(const std::vector<std::string>& tokens) {
  Json list = Json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    list.push_back({{"id", id},
                    {"content", tokens[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", true}});
  }
  return list;
}

Json settings(Json added, Json normalizer, Json pre_tokenizer, Json post_processor, Json decoder,
              Json model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", normalizer},
          {"pre_tokenizer", pre_tokenizer},
          {"post_processor", post_processor},
          {"decoder", decoder},
          {"model", model}};
}

}  // namespace

std::string gpt2_settings(const VocabularyEntries& vocabulary) {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  Json post = byte_level;
  post["trim_offsets"] = false;
  const auto cls = id_of(vocabulary, "<s>"), sep = id_of(vocabulary, "</s>");
  if (cls && sep && id_of(vocabulary, "<mask>")) {
    post = {{"type", "RobertaProcessing"},
            {"sep", Json::array({"</s>", *sep})},
            {"cls", Json::array({"<s>", *cls})},
            {"trim_offsets", true},
            {"add_prefix_space", false}};
  }
  return settings(special_tokens(vocabulary, {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}), nullptr,
                  byte_level, post, byte_level,
                  {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false}})
      .dump();
}

std::string trained_bpe_settings(const std::vector<std::string>& special_tokens) {
  Json settings = Json::parse(gpt2_settings({}));
  settings["added_tokens"] = first_tokens(special_tokens);
  return settings.dump();
}

std::string trained_unigram_settings(const std::vector<std::string>& special_tokens) {
  const Json metaspace = {{"type", "Metaspace"},
                          {"replacement", kMetaspace},
                          {"prepend_scheme", "always"},
                          {"split", true}};
  // Compatible forms are one, and so are runs of spaces: what sentencepiece does by default.
  const Json runs = {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}};
  const Json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const Json normalizers = Json::array({{{"type", "Nmt"}}, {{"type", "NFKC"}}, runs, strip});
  const auto unknown = std::ranges::find(special_tokens, "<unk>");
  return settings(first_tokens(special_tokens),
                  {{"type", "Sequence"}, {"normalizers", normalizers}}, metaspace, nullptr,
                  metaspace,
                  {{"type", "Unigram"},
                   {"unk_id", unknown - special_tokens.begin()},
                   {"byte_fallback", false}})
      .dump();
}

std::string bert_settings(const VocabularyEntries& vocabulary) {
  // A vocabulary that has an upper-case word beside the special ones in brackets keeps case.
  const bool cased = std::ranges::any_of(vocabulary, [](const TokenizerFile::Entry& entry) {
    const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
    return !entry.token.starts_with('[') && std::ranges::any_of(entry.token, upper);
  });
  const auto cls = id_of(vocabulary, "[CLS]"), sep = id_of(vocabulary, "[SEP]");
  Json post = nullptr;
  if (cls && sep) {
    post = {{"type", "BertProcessing"},
            {"sep", Json::array({"[SEP]", *sep})},
            {"cls", Json::array({"[CLS]", *cls})}};
  }
  return settings(special_tokens(vocabulary, {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}),
                  {{"type", "BertNormalizer"},
                   {"clean_text", true},
                   {"handle_chinese_chars", true},
                   {"strip_accents", nullptr},
                   {"lowercase", !cased}},
                  {{"type", "BertPreTokenizer"}}, post,
                  {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}},
                  {{"type", "WordPiece"},
                   {"unk_token", "[UNK]"},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100}})
      .dump();
}

}  // namespace qkv::text

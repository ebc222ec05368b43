#include <cmath>

#include "core/check.h"
#include "io/shown.h"
#include "text/bpe.h"
#include "text/json_pipeline.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

namespace qkv::text {
namespace {

Vocabulary make_vocabulary(const TokenizerFile& file) {
  Vocabulary vocabulary(file.name);
  std::size_t bytes = 0;
  for (const auto& entry : file.vocabulary) bytes += entry.token.size();
  vocabulary.reserve(file.vocabulary.size(), bytes);
  for (const auto& entry : file.vocabulary) vocabulary.add(entry.token, entry.id);
  return vocabulary;
}

// Old files do not say which model it is.
std::string model_type(const TokenizerFile& file, const Config& model) {
  if (model.has("type")) return model.text("type");
  if (file.has_merges) return "BPE";
  if (file.vocabulary_is_list) return "Unigram";
  return model.has("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

ModelPtr make_bpe(const TokenizerFile& file, const Config& model, bool byte_level) {
  check(file.has_merges, "{}: model.merges is missing", file.name);
  check(!model.has("dropout") || model.number("dropout", 0, 1) == 0,
        "{}: dropout makes ids random, which is not supported; set it to null",
        model.where("dropout"));
  Bpe::Merges merges;
  merges.reserve(file.merges.size());
  for (const auto& [left, right] : file.merges) merges.emplace_back(left, right);
  return std::make_unique<Bpe>(make_vocabulary(file), merges,
                               BpeOptions{.unknown = model.text_or("unk_token", ""),
                                          .fuse_unknown = model.flag_or("fuse_unk", false),
                                          .byte_fallback = model.flag_or("byte_fallback", false),
                                          .ignore_merges = model.flag_or("ignore_merges", false),
                                          .prefix = model.text_or("continuing_subword_prefix", ""),
                                          .suffix = model.text_or("end_of_word_suffix", ""),
                                          .byte_level = byte_level},
                               file.name);
}

ModelPtr make_unigram(const TokenizerFile& file, const Config& model) {
  std::vector<double> scores;
  scores.reserve(file.vocabulary.size());
  for (const auto& entry : file.vocabulary) {
    check(std::isfinite(entry.score), "{}: the score of '{}' is not finite", file.name,
          shown_name(entry.token));
    scores.push_back(entry.score);
  }
  UnigramOptions options;
  options.byte_fallback = model.flag_or("byte_fallback", false);
  if (model.has("unk_id")) {
    check(!scores.empty(), "{}: unk_id needs a vocabulary", file.name);
    options.unknown = static_cast<TokenId>(
        model.integer("unk_id", 0, static_cast<std::int64_t>(scores.size()) - 1));
  }
  return std::make_unique<Unigram>(make_vocabulary(file), std::move(scores), options, file.name);
}

}  // namespace

ModelPtr make_model(const TokenizerFile& file, bool byte_level) {
  const Config model = file.config.object("model");
  const std::string type = model_type(file, model);
  const bool unigram = type == "Unigram";
  check(file.vocabulary.empty() || file.vocabulary_is_list == unigram,
        "{}: model.vocab of {} must be {}", file.name, shown_name(type),
        unigram ? "a list of tokens and scores" : "an object of tokens and ids");
  if (type == "BPE") return make_bpe(file, model, byte_level);
  if (unigram) return make_unigram(file, model);
  if (type == "WordPiece") {
    constexpr std::int64_t kLongest = 1 << 20;
    return std::make_unique<WordPiece>(
        make_vocabulary(file),
        WordPieceOptions{model.text_or("unk_token", "[UNK]"),
                         model.text_or("continuing_subword_prefix", "##"),
                         static_cast<std::size_t>(
                             model.integer_or("max_input_chars_per_word", 100, 0, kLongest))},
        file.name);
  }
  if (type == "WordLevel") {
    return std::make_unique<WordLevel>(make_vocabulary(file), model.text_or("unk_token", ""),
                                       file.name);
  }
  fail("{}: '{}' is not supported; supported are BPE, WordPiece, Unigram and WordLevel",
       model.where("type"), shown_name(type));
}

}  // namespace qkv::text

// Small files that ask for work or memory out of all proportion: each is an Error that names the
// file and the part of it, or is done in time proportional to the text. Without the limits these
// tests do not end.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "io/json.h"
#include "qkv/tokenizer.h"
#include "support/temporary_folder.h"
#include "text/bpe.h"
#include "text/sentencepiece_pipeline.h"

namespace qkv {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int64_t>;
using Scored = std::vector<std::pair<std::string, double>>;

json scored_pieces(const Scored& pieces) {
  json list = json::array();
  for (const auto& [piece, score] : pieces) list.push_back(json::array({piece, score}));
  return list;
}

std::string many(std::string_view text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

json list_of(std::size_t count, const json& value) { return json(count, value); }

Tokenizer load_settings(const json& settings) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("tokenizer.json");
  std::ofstream(path) << settings.dump();
  return Tokenizer::load(path);
}

// A tokenizer of a few words with these other settings.
json words_with(json settings) {
  if (!settings.contains("model")) {
    settings["model"] = {
        {"type", "WordLevel"}, {"vocab", {{"[UNK]", 0}, {"a", 1}}}, {"unk_token", "[UNK]"}};
  }
  return settings;
}

json sequence_of(const char* key, const char* list, const json& steps) {
  return words_with({{key, {{"type", "Sequence"}, {list, steps}}}});
}
json normalizer_steps(const json& steps) { return sequence_of("normalizer", "normalizers", steps); }
json pre_tokenizer_steps(const json& steps) {
  return sequence_of("pre_tokenizer", "pretokenizers", steps);
}
json replace_step(const json& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}
json split_step(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

const json kDoubled = replace_step({{"String", "a"}}, "aa");
const json kQuadraticPattern = {{"Regex", "(?>(?:a|b)*)c"}};  // the square of the text
const json kSingleCharacters = {{"type", "FixedLength"}, {"length", 1}};

TEST(TokenizerHostile, PatternThatCompiledForever) {
  const Tokenizer tokenizer =
      load_settings(words_with({{"pre_tokenizer", split_step(many("(?:|)", 28) + "a")}}));
  EXPECT_EQ(tokenizer.encode("aaa"), (Ids{1, 1, 1}));
}

TEST(TokenizerHostile, EncodingOutOfProportionNamesThePart) {
  const std::string ab = many("ab", 3000);
  const struct {
    const char* part;
    json settings;
    std::string text;
  } cases[] = {
      {"normalizer.normalizers[16].type: a text of 1 bytes",
       normalizer_steps(list_of(30, kDoubled)), "a"},
      {"normalizer.normalizers[1].type: a text of 1 bytes",
       normalizer_steps({{{"type", "NFC"}}, replace_step({{"Regex", "."}}, many("x", 100'000))}),
       "a"},
      {"normalizer.type: a text of",
       words_with({{"normalizer", {{"type", "Prepend"}, {"prepend", many("x", 60'000)}}},
                   {"added_tokens", {{{"content", "<s>"}, {"normalized", false}}}}}),
       many("<s>a", 100)},
      {"normalizers[15].type: a text of 2 bytes",
       normalizer_steps(list_of(30, {{"type", "ByteLevel"}})), "\u00E9"},
      {"pre_tokenizer.pretokenizers[14].type: a text of 2 bytes",
       pre_tokenizer_steps(list_of(30, {{"type", "ByteLevel"}, {"use_regex", false}})), "\u00E9"},
      {"normalizer.normalizers[", normalizer_steps(list_of(5000, {{"type", "Lowercase"}})),
       many("a", 10'000)},
      {"pre_tokenizer.pretokenizers[", pre_tokenizer_steps(list_of(5000, {{"type", "Whitespace"}})),
       many("a ", 5000)},
      {"normalizer.normalizers[",
       normalizer_steps(list_of(50, replace_step(kQuadraticPattern, "x"))), ab},
      {"pretokenizers[1].pattern.Regex: more than",
       pre_tokenizer_steps({kSingleCharacters, split_step(many("(?:|)", 18) + "b")}),
       many("a", 5000)},
      {"normalizer.pattern.Regex",
       words_with({{"normalizer", replace_step(kQuadraticPattern, "x")}}), ab},
      {"added_tokens: more than",
       words_with(
           {{"added_tokens", {{{"content", many("a", 8000) + 'b'}, {"normalized", false}}}}}),
       many("a", 16'000)},
      {"tokenizer.json: more than",
       {{"model",
         {{"type", "Unigram"},
          {"unk_id", 0},
          {"vocab", scored_pieces({{"u", 0}, {"a", -1}, {many("a", 8000) + 'b', -1}})}}}},
       many("a", 16'000)},
      {"tokenizer.json: more than",
       {{"model",
         {{"type", "WordPiece"},
          {"max_input_chars_per_word", 1 << 20},
          {"vocab", {{"[UNK]", 0}, {"a", 1}, {"##a", 2}, {"##" + many("a", 8000) + 'b', 3}}}}}},
       many("a", 16'000)},
      {"tokenizer.json: a text of",
       {{"model",
         {{"type", "BPE"},
          {"continuing_subword_prefix", many("#", 20'000)},
          {"vocab", {{"a", 0}, {"<0x23>", 1}, {"<0x61>", 2}}},
          {"merges", json::array()},
          {"byte_fallback", true}}}},
       many("a", 20'000)},
      {"tokenizer.json: more than",
       words_with({{"added_tokens", {{{"content", " "}, {"rstrip", true}, {"normalized", false}}}},
                   {"post_processor", {{"type", "ByteLevel"}}}}),
       many(" ", 8000)},
      {"tokenizer.json: more than",
       words_with(
           {{"pre_tokenizer", kSingleCharacters},
            {"post_processor",
             {{"type", "Sequence"}, {"processors", list_of(5000, {{"type", "ByteLevel"}})}}}}),
       many("a", 10'000)},
  };
  for (const auto& c : cases) {
    const Tokenizer tokenizer = load_settings(c.settings);
    EXPECT_ERROR(c.part, tokenizer.encode_spans(c.text)) << c.settings.dump().substr(0, 200);
  }
}

TEST(TokenizerHostile, DecodingOutOfProportionNamesThePart) {
  const struct {
    const char* part;
    json steps;
    std::size_t tokens;
  } cases[] = {
      {"decoder.decoders[16].type: a text of 2 bytes", list_of(30, kDoubled), 1},
      {"decoder.decoders[1].type: a text of 2 bytes",
       {{{"type", "Fuse"}}, replace_step({{"Regex", "."}}, many("x", 100'000))},
       1},
      {"decoder.decoders[", list_of(5000, {{"type", "Fuse"}}), 10'000},
      {"decoder.decoders[1].pattern.Regex",
       {{{"type", "Fuse"}}, replace_step(kQuadraticPattern, "")},
       10'000},
  };
  for (const auto& c : cases) {
    const Tokenizer tokenizer = load_settings(sequence_of("decoder", "decoders", c.steps));
    EXPECT_ERROR(c.part, tokenizer.decode(Ids(c.tokens, 1))) << c.part;
  }
}

TEST(TokenizerHostile, LoadingOutOfProportionNamesThePart) {
  const json x = {{"id", "x"}, {"ids", list_of(20, 0)}, {"tokens", list_of(20, "[UNK]")}};
  const auto post_processor = [&](json items) {
    return words_with({{"post_processor",
                        {{"type", "TemplateProcessing"},
                         {"single", std::move(items)},
                         {"pair", json::array()},
                         {"special_tokens", {{"x", x}}}}}});
  };
  json specials = list_of(200, {{"SpecialToken", {{"id", "x"}}}});
  specials.push_back({{"Sequence", {{"id", "A"}}}});
  json added = json::array();
  for (int i = 0; i < 2000; ++i) added.push_back({{"content", "a" + std::to_string(i)}});
  json keys;
  for (int i = 0; i < 5000; ++i) keys[std::to_string(i)] = 0;
  const struct {
    const char* part;
    json settings;
  } cases[] = {
      {"post_processor.single: a template that adds more than 1024", post_processor(specials)},
      {"post_processor.single must use a text only once",
       post_processor(list_of(1000, {{"Sequence", {{"id", "A"}}}}))},
      {"normalizer.type: a text of",
       words_with({{"added_tokens", added},
                   {"normalizer", replace_step({{"String", "a"}}, many("b", 60'000))}})},
      {"more than 4096 keys", words_with({{"other", keys}})},
      {"at most 4194303", {{"model", {{"vocab", {{"a", std::uint64_t{1} << 62}}}}}}},
      {"levels", words_with({{"pre_tokenizer", json::parse(many(R"({"pretokenizers":)", 70) + "{}" +
                                                           many("}", 70))}})},
  };
  for (const auto& c : cases) EXPECT_ERROR(c.part, load_settings(c.settings)) << c.part;
}

// What took the square of the text, and is in proportion to it.
TEST(TokenizerHostile, LongTextsAreNotQuadratic) {
  constexpr std::size_t kSize = 200'000;
  const std::string spaces = 'a' + many(" ", kSize) + 'a', as = many("a", kSize);
  for (const char* side : {"rstrip", "lstrip"}) {
    const Tokenizer tokenizer = load_settings(
        words_with({{"added_tokens", {{{"content", " "}, {side, true}, {"normalized", false}}}}}));
    EXPECT_EQ(tokenizer.encode(spaces).size(), kSize + 2) << side;
  }
  const auto encoded = [](const json& settings, const std::string& text) {
    return load_settings(settings).encode(text).size();
  };
  EXPECT_EQ(
      encoded(normalizer_steps({replace_step({{"String", many("a", kSize / 2) + 'b'}}, "c")}), as),
      1U);
  EXPECT_EQ(encoded(words_with({{"pre_tokenizer", split_step("(a+)+b")}}), as), 1U);
  EXPECT_EQ(encoded({{"model",
                      {{"type", "BPE"},
                       {"vocab", {{"a", 0}, {"aa", 1}, {"aaaa", 2}}},
                       {"merges", {"a a", "aa aa"}}}}},
                    as),
            kSize / 4);
  EXPECT_EQ(encoded({{"model",
                      {{"type", "Unigram"},
                       {"unk_id", 0},
                       {"vocab", scored_pieces({{"u", 0}, {"a", -1}, {"aa", -1}})}}}},
                    as),
            kSize / 2);
  // No character of the class, which has many.
  std::string set;
  for (char32_t c = 0x4E00; c < 0x9E00; c += 2) text::append_utf8(set, c);
  EXPECT_EQ(encoded(words_with({{"pre_tokenizer", split_step("[" + set + "]+")}}),
                    many("\u4E01", 20'000)),
            1U);
}

TEST(TokenizerHostile, LongListsOfSettingsAreReadOnce) {
  const Config config =
      Config::parse(R"({"list":[{})" + many(",{}", 300'000) + "]}", "tokenizer.json");
  EXPECT_EQ(config.objects("list").size(), 300'001U);
}

// Lengths are the caller's to say: what a file says of them is not applied.
TEST(TokenizerHostile, LengthsOfTheFileAreNotApplied) {
  constexpr std::int64_t kFarTooLong = std::int64_t{1} << 40;
  const Tokenizer tokenizer = load_settings(words_with(
      {{"padding", {{"strategy", {{"Fixed", kFarTooLong}}}, {"pad_to_multiple_of", kFarTooLong}}},
       {"truncation",
        {{"max_length", kFarTooLong}, {"stride", kFarTooLong}, {"strategy", "LongestFirst"}}}}));
  EXPECT_EQ(tokenizer.encode("a"), Ids{1});
}

// Each byte of the prefix is a token as well, though none of the text.
TEST(TokenizerHostile, BytesOfAPrefixStayWithinTheWord) {
  const json model = {{"type", "BPE"},
                      {"continuing_subword_prefix", "##"},
                      {"vocab", {{"<0x23>", 0}, {"<0x61>", 1}}},
                      {"merges", json::array()},
                      {"byte_fallback", true}};
  const Encoding encoding = load_settings({{"model", model}}).encode_spans("aa");
  EXPECT_EQ(encoding.ids, (Ids{1, 0, 0, 1}));
  for (const TokenSpan& span : encoding.spans) EXPECT_LE(span.end, 2U);
}

TEST(TokenizerHostile, ATokenOfManyBytesIsNotDecodedWithoutEnd) {
  const std::string token = many("u", 1'000'000);
  const Tokenizer tokenizer = load_settings(
      {{"model", {{"type", "WordLevel"}, {"vocab", {{token, 0}}}, {"unk_token", token}}}});
  EXPECT_EQ(tokenizer.decode(Ids{0}), token);
  EXPECT_ERROR("tokenizer.json: 1000 ids stand for", tokenizer.decode(Ids(1000, 0)));
  EXPECT_EQ(load_settings(words_with({})).decode(Ids(1'000'000, 1)).size(), 1'999'999U);
}

TEST(TokenizerHostile, IdsThatAreNoneAreErrors) {
  const Tokenizer tokenizer = load_settings(words_with({}));
  EXPECT_ERROR("decode: there is no id -1, ids are 0 to 1", tokenizer.decode(Ids{1, -1}));
  EXPECT_ERROR("decode: there is no id 2, ids are 0 to 1", tokenizer.decode(Ids{2}));
  EXPECT_ERROR("no id -1", tokenizer.decode(Ids{-1}, {.skip_out_of_range = true}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 2, 1LL << 40}, {.skip_out_of_range = true}), "a");
  DecodeStream stream(tokenizer);
  EXPECT_EQ(stream.push(1), "a");
  EXPECT_EQ(stream.push(2), "");
  EXPECT_ERROR("no id -9", stream.push(-9));
}

// Each push decodes what is kept: where nothing is certain or nothing is said, that is a few ids.
TEST(TokenizerHostile, StreamsKeepFewIds) {
  const auto streamed = [](const std::string& word, json decoder, std::size_t count) {
    json model = {{"type", "WordLevel"}, {"vocab", {{"a", 0}, {word, 1}}}, {"unk_token", "a"}};
    const Tokenizer tokenizer = load_settings({{"model", model}, {"decoder", std::move(decoder)}});
    DecodeStream stream(tokenizer);
    std::string text = stream.push(0);
    for (std::size_t i = 0; i < count; ++i) text += stream.push(1);
    return text + stream.finish();
  };
  constexpr std::size_t kCount = 20'000;
  EXPECT_EQ(streamed("\uFFFD", {{"type", "Fuse"}}, kCount), 'a' + many("\uFFFD", kCount));
  EXPECT_EQ(streamed("b", replace_step({{"String", "b"}}, ""), kCount), "a");
}

// Keys that all hash to one place would make reading a vocabulary quadratic.
TEST(TokenizerHostile, CollidingMergesAreAnError) {
  text::MergeTable table;
  table.reserve(100'000, "file");
  const std::size_t mask = (std::size_t{1} << 18) - 1;
  std::size_t put = 0;
  EXPECT_ERROR("file: tokens or merges", [&] {
    for (std::uint64_t pair = 0; put < 3000; ++pair) {
      if ((text::mixed(pair) & mask) >= 16) continue;
      table.put({static_cast<text::TokenId>(pair >> 32), static_cast<text::TokenId>(pair),
                 static_cast<std::uint32_t>(put++), 0});
    }
  }());
  EXPECT_GT(put, 1000U);
}

// A sentencepiece model, written field by field.
std::string wire_integer(std::uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes += static_cast<char>(value);
}
std::string message_field(int number, std::string_view bytes) {
  return wire_integer(static_cast<std::uint64_t>(number) << 3 | 2) +
         wire_integer(bytes.size()).append(bytes);
}
std::string message_field(int number, std::uint64_t value) {
  return wire_integer(static_cast<std::uint64_t>(number) << 3) + wire_integer(value);
}
std::string bytes_of_integer(std::uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i);
  return bytes;
}
std::string model_piece(std::string_view text, float score, int type) {
  const std::string real =
      wire_integer(2 << 3 | 5) + bytes_of_integer(std::bit_cast<std::uint32_t>(score));
  return message_field(
      1, message_field(1, text) + real + message_field(3, static_cast<std::uint64_t>(type)));
}
const std::string kUnknownAndLetter = model_piece("<unk>", 0, 2) + model_piece("a", -1, 1);

// Rules in which the character 'a' leads to where it was, or has a replacement.
std::string hostile_charsmap(bool loops, std::string_view replacement) {
  constexpr std::uint32_t kNode = 256, kLetter = 'a';
  std::vector<std::uint32_t> units(512);
  units[0] = (kNode ^ kLetter) << 10;
  units[kNode] = loops ? kLetter | kLetter << 10 : kLetter | 1 << 8 | 4 << 10;
  units[kNode ^ 4] = loops ? 0 : 0x80000000U;
  std::string bytes = bytes_of_integer(static_cast<std::uint32_t>(4 * units.size()));
  for (const std::uint32_t unit : units) bytes += bytes_of_integer(unit);
  return bytes.append(replacement) += '\0';
}

Tokenizer load_sentencepiece(const std::string& bytes) {
  return Tokenizer(std::make_shared<text::SentencePiecePipeline>(
      text::SentencePieceModel::parse(bytes, "spiece.model")));
}

TEST(TokenizerHostile, SentencePieceOutOfProportion) {
  const auto unigram = message_field(2, message_field(3, std::uint64_t{1}));
  const auto bpe = message_field(2, message_field(3, std::uint64_t{2}));
  const auto rules = [](const std::string& map) { return message_field(3, message_field(2, map)); };
  const std::string as = many("a", 20'000);
  const struct {
    const char* part;
    std::string model;
  } cases[] = {
      {"precompiled_charsmap: more than",
       kUnknownAndLetter + unigram + rules(hostile_charsmap(true, ""))},
      {"precompiled_charsmap: more than",
       kUnknownAndLetter + unigram + rules(hostile_charsmap(false, many(" ", 100'000)))},
      {"precompiled_charsmap: a text of",
       kUnknownAndLetter + unigram + rules(hostile_charsmap(false, many("x", 100'000)))},
      {"spiece.model: more than", model_piece("<unk>", 0, 2) + model_piece("a", -1e6F, 1) +
                                      model_piece(many("b", 20'000), -1e30F, 1) + unigram},
      {"precompiled_charsmap: more than", kUnknownAndLetter + model_piece(as + 'b', 0, 4) + bpe},
  };
  for (const auto& c : cases) {
    const Tokenizer tokenizer = load_sentencepiece(c.model);
    EXPECT_ERROR(c.part, tokenizer.encode(as)) << c.part;
  }
  const std::string surface = message_field(2, message_field(44, many("x", 1'000'000)));
  EXPECT_ERROR("spiece.model: 1000 ids stand for",
               load_sentencepiece(kUnknownAndLetter + surface).decode(Ids(1000, 0)));
  EXPECT_ERROR("no id 2", load_sentencepiece(kUnknownAndLetter).decode(Ids{2}));
  EXPECT_ERROR("no id -1", load_sentencepiece(kUnknownAndLetter).decode(Ids{-1}));
}

}  // namespace
}  // namespace qkv

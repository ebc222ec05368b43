// Tokenizers against what the libraries they come from computed, and against hostile files.
#include "qkv/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "support/temporary_folder.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_file.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kShared = fs::path(QKV_TEST_DATA) / "../../../shared/tokenizers";

// Ids and text of every recorded text, and the same ids where spans are asked for.
void expect_recorded(const std::string& recorded, const std::string& name, const fs::path& path) {
  if (!fs::exists(kShared / recorded)) GTEST_SKIP() << (kShared / recorded) << " is not here";
  const json all = json::parse(std::ifstream(kShared / recorded));
  const Tokenizer tokenizer = Tokenizer::load((kShared / path).string());
  const json& expected = all.at("expected").at(name);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto text = all.at("texts")[i].get<std::string>();
    const auto ids = tokenizer.encode(text);
    ASSERT_EQ(ids, expected[i].at("ids").get<std::vector<std::int64_t>>()) << text;
    ASSERT_EQ(tokenizer.encode_spans(text).ids, ids) << text;
    ASSERT_EQ(tokenizer.decode(ids), expected[i].at("decoded").get<std::string>()) << text;
    DecodeStream stream(tokenizer);
    std::string streamed;
    for (const std::int64_t id : ids) streamed += stream.push(id);
    ASSERT_EQ(streamed + stream.finish(), tokenizer.decode(ids)) << text;
  }
}

TEST(Tokenizer, RecordedGpt2) { expect_recorded("expected.json", "gpt2", "gpt2"); }
TEST(Tokenizer, RecordedGpt2FromMerges) {
  expect_recorded("expected.json", "gpt2", "gpt2/vocab.json");
}
TEST(Tokenizer, RecordedBert) { expect_recorded("expected.json", "bert", "bert"); }
TEST(Tokenizer, RecordedBertFromVocabTxt) {
  expect_recorded("expected.json", "bert", "bert/vocab.txt");
}
TEST(Tokenizer, RecordedRoberta) { expect_recorded("expected.json", "roberta", "roberta"); }
TEST(Tokenizer, RecordedT5) { expect_recorded("expected.json", "t5", "t5"); }
TEST(Tokenizer, RecordedMarian) { expect_recorded("expected.json", "marian", "marian"); }
TEST(Tokenizer, RecordedSentencePieceLlama) {
  expect_recorded("expected_sentencepiece.json", "llama2", "llama2/tokenizer.model");
}
TEST(Tokenizer, RecordedSentencePieceT5) {
  expect_recorded("expected_sentencepiece.json", "t5", "t5/spiece.model");
}

// A byte-level tokenizer of all bytes and two merges.
std::string small_json(const std::string& extra = "") {
  json vocab, merges = json::array({"h e", "he l"});
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    static unsigned next;
    if (byte == 0) next = 256;
    const unsigned code = prints ? byte : next++;
    std::string token;
    if (code < 128) {
      token = static_cast<char>(code);
    } else {
      token = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    }
    vocab[token] = byte;
  }
  vocab["he"] = 256;
  vocab["hel"] = 257;
  return R"({"added_tokens":[{"content":"<end>","special":true}],"pre_tokenizer":{"type":)"
         R"("ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},"model":{"vocab":)" +
         vocab.dump() + R"(,"merges":)" + merges.dump() + "}" + extra + "}";
}

Tokenizer load_text(const std::string& text) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("tokenizer.json");
  std::ofstream(path) << text;
  return Tokenizer::load(path);
}

// A tokenizer of whole words, numbered from 1 (0 is what is unknown), with these other settings.
Tokenizer load_words(const std::vector<std::string>& words, json settings) {
  json vocab = {{"[UNK]", 0}};
  for (std::size_t i = 0; i < words.size(); ++i) vocab[words[i]] = i + 1;
  settings["model"] = {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "[UNK]"}};
  return load_text(settings.dump());
}

using Ids = std::vector<std::int64_t>;
using Spans = std::vector<TokenSpan>;

TEST(Tokenizer, ByteLevelWithAddedToken) {
  const Tokenizer tokenizer = load_text(small_json());
  EXPECT_EQ(tokenizer.encode("hello<end>"), (std::vector<std::int64_t>{257, 'l', 'o', 258}));
  EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{257, 'l', 'o', 258}), "hello");
  EXPECT_EQ(tokenizer.kind(), "byte-level BPE, 259 tokens");
  EXPECT_TRUE(tokenizer.is_special(258));
  EXPECT_EQ(tokenizer.encode("hello hello", {.max_tokens = 2}).size(), 2U);
}

TEST(Tokenizer, SavedIsReadBackTheSame) {
  const testing::TemporaryFolder folder;
  const Tokenizer first = load_text(small_json());
  first.save(folder.path("saved.json"));
  const Tokenizer second = Tokenizer::load(folder.path("saved.json"));
  for (const char* text : {"hello <end> there", "h\xC3\xA9l\xE4\xBD\xA0"}) {
    EXPECT_EQ(first.encode(text), second.encode(text));
  }
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacement) {
  const Tokenizer tokenizer = load_text(small_json());
  EXPECT_EQ(tokenizer.encode("a\xFF"
                             "b\xE4\xBD"),
            tokenizer.encode("a\xEF\xBF\xBD"
                             "b\xEF\xBF\xBD"));
  const Encoding encoding = tokenizer.encode_spans(
      "a\xFF"
      "b");
  EXPECT_EQ(encoding.spans.front(), (TokenSpan{0, 1}));
  EXPECT_EQ(encoding.spans.back(), (TokenSpan{2, 3}));
}

// What a pattern cuts a text into.
Spans split(const std::string& pattern, const std::string& text) {
  const json splits = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  return load_words({}, {{"pre_tokenizer", splits}}).encode_spans(text).spans;
}

// Oniguruma does so: they have its own table of Latin-1, which sets in brackets do not ask.
TEST(Tokenizer, SuperscriptsAreWordCharactersOutsideOfBrackets) {
  for (const std::string c : {"\u00B2", "\u00B3", "\u00B9", "\u00BC", "\u00BD", "\u00BE"}) {
    EXPECT_EQ(split(R"(\w+)", ">" + c + "a"), (Spans{{0, 1}, {1, 4}})) << c;
    EXPECT_EQ(split(R"(\W+)", ">" + c + "a"), (Spans{{0, 1}, {1, 4}})) << c;
    EXPECT_EQ(split(R"([\w]+)", ">" + c + "a"), (Spans{{0, 3}, {3, 4}})) << c;
    EXPECT_EQ(split(R"([^\w]+)", ">" + c + "a"), (Spans{{0, 3}, {3, 4}})) << c;
    EXPECT_EQ(split(R"([\W]+)", ">" + c + "a"), (Spans{{0, 3}, {3, 4}})) << c;
    EXPECT_EQ(split(R"(\b)", ">" + c + "a"), (Spans{{0, 1}, {1, 4}})) << c;
    EXPECT_EQ(split(R"((?<=\w)>)", c + ">>"), (Spans{{0, 2}, {2, 3}, {3, 4}})) << c;
  }
}

TEST(Tokenizer, CapitalIWithDotIsNoCaseOfI) {
  EXPECT_EQ(split("(?i:\u0130)", "aib"), (Spans{{0, 3}}));
  EXPECT_EQ(split("(?i:\u0130)", "a\u0130b"), (Spans{{0, 1}, {1, 3}, {3, 4}}));
}

// Decompositions of Unicode 9: what Unicode 15 added stays as it is.
TEST(Tokenizer, DecompositionsAreThoseOfUnicode9) {
  for (const char* form : {"NFKC", "NFKD"}) {
    const Tokenizer tokenizer =
        load_words({"fi", "\U0001E030", "\U0001E06D"}, {{"normalizer", {{"type", form}}}});
    EXPECT_EQ(tokenizer.encode("\uFB01"), Ids{1}) << form;
    EXPECT_EQ(tokenizer.encode("\U0001E030"), Ids{2}) << form;
    EXPECT_EQ(tokenizer.encode("\U0001E06D"), Ids{3}) << form;
  }
}

// A rule replaces all of a grapheme, and what that is Unicode 17 says.
TEST(Tokenizer, GraphemesAreThoseOfUnicode17) {
  const json rules = {{"type", "Precompiled"},  // "a" becomes "Z"
                      {"precompiled_charsmap", "DAAAAACAAQBhDQAAAAAAgFoA"}};
  const Tokenizer tokenizer =
      load_words({"Z", "\U000113D1Z\u0301", "\U00011A3AZ", "Z\u0915"}, {{"normalizer", rules}});
  for (const std::string mark : {"\u0301", "\u0897", "\u1AD4", "\u1AEB", "\U00010D69", "\U000113C0",
                                 "\U00011B60", "\U0001611E", "\U0001E5EE", "\U0001E6F5"}) {
    EXPECT_EQ(tokenizer.encode("a" + mark), Ids{1}) << mark;
  }
  EXPECT_EQ(tokenizer.encode("\U000113D1a\u0301"), Ids{2});  // one, longer than a rule looks at
  EXPECT_EQ(tokenizer.encode("\U00011A3Aa\u0301"), Ids{3});  // two
  EXPECT_EQ(tokenizer.encode("a\u0915"), Ids{4});
}

TEST(Tokenizer, AddedTokenThatIsSpaceTakesSpacesAlong) {
  const json space = {{"content", "\n"}, {"lstrip", true}, {"rstrip", true}, {"normalized", false}};
  const Tokenizer tokenizer = load_words({"a"}, {{"added_tokens", {space}}});
  const Encoding encoding = tokenizer.encode_spans("a\n \n\na");
  EXPECT_EQ(encoding.ids, (Ids{1, 2, 1}));
  EXPECT_EQ(encoding.spans, (Spans{{0, 1}, {1, 5}, {5, 6}}));
  EXPECT_EQ(tokenizer.encode("\n\n\n"), Ids{2});
}

TEST(Tokenizer, AddedTokenWithinSpacesOfTheOneBeforeIsDropped) {
  const json before = {{"content", "<s>"}, {"rstrip", true}, {"normalized", false}};
  const json space = {{"content", "\n"}, {"lstrip", true}, {"normalized", false}};
  const Tokenizer tokenizer = load_words({"a"}, {{"added_tokens", {before, space}}});
  const Encoding encoding = tokenizer.encode_spans("<s>\n\na");
  EXPECT_EQ(encoding.ids, (Ids{2, 1}));
  EXPECT_EQ(encoding.spans, (Spans{{0, 5}, {5, 6}}));
}

// Every text of up to five of these tokens: bytes of a character, one that is an added token as
// well, one that is left out, one that is unknown.
TEST(Tokenizer, StreamedBytesAreThoseOfTheWholeText) {
  const json added = {{{"content", "<0xA9>"}, {"normalized", false}},
                      {{"content", "<s>"}, {"normalized", false}, {"special", true}}};
  const Tokenizer tokenizer =
      load_words({"<0x6C>", "<0xC3>", "<0xA9>", "a"},
                 {{"added_tokens", added}, {"decoder", {{"type", "ByteFallback"}}}});
  ASSERT_EQ(tokenizer.id("<0xA9>"), 3);
  ASSERT_EQ(tokenizer.id("<s>"), 5);
  constexpr std::int64_t kTokens = 7;  // the last is no token
  for (const bool skip : {true, false}) {
    for (std::int64_t text = 0; text < 16807; ++text) {
      Ids ids;
      for (std::int64_t rest = text; rest > 0; rest /= kTokens) ids.push_back(rest % kTokens);
      DecodeStream stream(tokenizer, {.skip_special = skip});
      std::string streamed;
      for (const std::int64_t id : ids) streamed += stream.push(id);
      ASSERT_EQ(streamed + stream.finish(),
                tokenizer.decode(ids, {.skip_special = skip, .skip_out_of_range = true}))
          << text;
    }
  }
}

TEST(Tokenizer, LongWordsAreNotQuadratic) {
  const Tokenizer tokenizer = load_text(small_json());
  const std::string text(1 << 20, 'h');
  EXPECT_EQ(tokenizer.encode(text).size(), text.size());
}

TEST(Tokenizer, TrainedTwiceIsTheSame) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("text");
  std::ofstream(path) << "low lower lowest\nnew newer newest low low \xFF\n";
  const TokenizerTraining training{.size = 270, .special_tokens = {"<s>"}, .on_progress = {}};
  const Tokenizer first = train_tokenizer({path}, training);
  const Tokenizer second = train_tokenizer({path}, training);
  EXPECT_EQ(first.id("<s>"), 0);
  EXPECT_GT(first.size(), 258);  // it merged something
  const std::string text = "the lowest of the new\n\xE4\xBD\xA0<s>";
  const auto ids = first.encode(text);
  EXPECT_EQ(ids, second.encode(text));
  EXPECT_EQ(first.decode(ids, {.skip_special = false}), text);
  EXPECT_ERROR("size", train_tokenizer({path}, {.size = 100, .on_progress = {}}));
  EXPECT_ERROR("nowhere", train_tokenizer({"nowhere"}, {.size = 300, .on_progress = {}}));
}

// Words are learnt whole, apart from the signs that follow them.
TEST(Tokenizer, UnigramLearnsWords) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("text");
  std::ofstream file(path);
  for (const char* first : {"walk", "talk", "jump", "play"}) {
    for (const char* last : {"ing", "ed", "er", "s"}) {
      for (int i = 0; i < 20; ++i) file << first << last << ", " << first << ".\n";
    }
  }
  file.close();
  const TokenizerTraining training{
      .kind = TokenizerKind::unigram, .size = 40, .special_tokens = {}, .on_progress = {}};
  const Tokenizer first = train_tokenizer({path}, training);
  EXPECT_EQ(first.size(), 40);
  EXPECT_EQ(first.id("<pad>"), 0);
  EXPECT_EQ(first.unknown_id(), 2);
  const auto pieces = [&](const std::string& text) {
    std::vector<std::string> all;
    for (const std::int64_t id : first.encode(text)) all.push_back(first.token(id));
    return all;
  };
  const std::string space = "\xE2\x96\x81";
  EXPECT_EQ(pieces("walk."), (std::vector<std::string>{space + "walk", "."}));
  EXPECT_EQ(pieces("  jump \t walk,  "),
            (std::vector<std::string>{space + "jump", space + "walk", ","}));
  EXPECT_EQ(first.encode("Q"), (std::vector<std::int64_t>{*first.id(space), 2}));
  EXPECT_EQ(first.decode(first.encode("jumped, played.")), "jumped, played.");
  // Written and read, and trained again: the same.
  first.save(folder.path("tokenizer.json"));
  const Tokenizer read = Tokenizer::load(folder.path("tokenizer.json"));
  const Tokenizer second = train_tokenizer({path}, training);
  const std::string text = "Who walks and who jumps?";
  EXPECT_EQ(read.encode(text), first.encode(text));
  EXPECT_EQ(second.encode(text), first.encode(text));
  EXPECT_ERROR("characters", train_tokenizer({path}, {.kind = TokenizerKind::unigram,
                                                      .size = 5,
                                                      .special_tokens = {},
                                                      .on_progress = {}}));
}

TEST(Tokenizer, TruncatedFilesAreErrors) {
  const std::string text = small_json();
  for (std::size_t size = 0; size < text.size(); size += 7) {
    EXPECT_ERROR("", text::TokenizerFile::parse(std::string_view(text).substr(0, size), "cut"));
  }
}

TEST(Tokenizer, ErrorsNameWhatIsWrong) {
  EXPECT_ERROR("at most", load_text(R"({"model":{"vocab":{"a":4000000000},"merges":[]}})"));
  EXPECT_ERROR("'ab'", load_text(R"({"model":{"vocab":{"a":0,"b":1},"merges":["a b"]}})"));
  EXPECT_ERROR("Fancy", load_text(small_json(R"(,"normalizer":{"type":"Fancy"})")));
  EXPECT_ERROR("added_tokens must be a list", load_text(R"({"added_tokens":{"content":"a"}})"));
  EXPECT_ERROR("added_tokens must be a list", load_text(R"({"added_tokens":"a"})"));
  for (const char* type : {"BPE", "WordPiece", "WordLevel", "Unigram"}) {
    const json model = {{"type", type},
                        {"vocab", type[0] == 'U' ? json::parse(R"([["a",0]])") : json{{"a", 0}}},
                        {"merges", json::array()},
                        {"unk_token", "[UNK]"}};
    const Tokenizer tokenizer = load_text(json{{"model", model}}.dump());
    EXPECT_ERROR("tokenizer.json: ", tokenizer.encode("b"));
  }
  EXPECT_ERROR("levels", load_text(std::string(100, '[')));
  EXPECT_ERROR("no tokenizer", Tokenizer::load(testing::TemporaryFolder().path("")));
}

TEST(Tokenizer, SentencePieceWithLyingLengthsIsAnError) {
  const std::string lies[] = {
      "\x0A\xFF\xFF\xFF\xFF\x0F", "\x0A\x05\x0A\x7F", "\x0A\x02\x0A", "", "\x0B",
      std::string(20, '\xFF')};
  for (const std::string& bytes : lies) {
    EXPECT_ERROR("lie", text::SentencePieceModel::parse(bytes, "lie"));
  }
}

}  // namespace
}  // namespace qkv

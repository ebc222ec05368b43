#include "text/pre_tokenizer.h"

#include <utility>

#include "core/check.h"
#include "io/shown.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace qkv::text {
namespace {

// Hands the text of every part to f(text, pieces), which cuts it; byte 0 is where the part begins.
template <class F>
void cut_parts(Words& words, Words& spare, SplitBehavior behavior, F&& f) {
  std::vector<Piece> pieces;
  spare.parts.clear();
  for (const Part& part : words.parts) {
    pieces.clear();
    f(std::string_view(words.text.text).substr(part.begin, part.end - part.begin), pieces);
    for (Piece& piece : pieces) {
      piece.part.begin += part.begin;
      piece.part.end += part.begin;
    }
    join_pieces(pieces, behavior, spare.parts);
  }
  std::swap(words.parts, spare.parts);
}

// Every character for which f is true is a match of its own.
template <class F>
void cut_at_characters(std::string_view text, std::vector<Piece>& pieces, F&& f) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = utf8_at(text, i);
    if (f(c.value)) {
      if (kept < i) pieces.push_back({{kept, i}, false});
      pieces.push_back({{i, i + c.size}, true});
      kept = i + c.size;
    }
    i += c.size;
  }
  if (kept < text.size()) pieces.push_back({{kept, text.size()}, false});
}

template <class F>
class AtCharacters final : public PreTokenizer {
 public:
  AtCharacters(F f, SplitBehavior behavior) : f_(std::move(f)), behavior_(behavior) {}
  void cut(Words& words, Words& spare, Allowance& /*allowance*/) const override {
    cut_parts(words, spare, behavior_, [&](std::string_view text, std::vector<Piece>& pieces) {
      cut_at_characters(text, pieces, f_);
    });
  }

 private:
  F f_;
  SplitBehavior behavior_;
};

template <class F>
PreTokenizerPtr at_characters(F f, SplitBehavior behavior) {
  return std::make_unique<AtCharacters<F>>(std::move(f), behavior);
}

// Words between spaces, punctuation apart.
class Bert final : public PreTokenizer {
 public:
  void cut(Words& words, Words& spare, Allowance& /*allowance*/) const override {
    const std::string& text = words.text.text;
    spare.parts.clear();
    for (const Part& part : words.parts) {
      std::size_t word = part.begin;
      for (std::size_t i = part.begin; i < part.end;) {
        const CodePoint c = utf8_at(text, i);
        const std::size_t next = i + c.size;
        const bool space = is_space(c.value);
        if (space || is_punctuation(c.value)) {
          if (word < i) spare.parts.push_back({word, i});
          if (!space) spare.parts.push_back({i, next});
          word = next;
        }
        i = next;
      }
      if (word < part.end) spare.parts.push_back({word, part.end});
    }
    std::swap(words.parts, spare.parts);
  }
};

// Runs of word characters and runs of what is neither that nor space.
class Whitespace final : public PreTokenizer {
 public:
  void cut(Words& words, Words& spare, Allowance& /*allowance*/) const override {
    cut_parts(words, spare, SplitBehavior::removed, [](std::string_view text, auto& pieces) {
      // ZERO WIDTH (NON-)JOINER is a word character here, though not in Oniguruma.
      const auto kind = [](char32_t c) {
        if (is_word(c) || c == 0x200C || c == 0x200D) return 0;
        return is_space(c) ? 1 : 2;
      };
      for (std::size_t i = 0; i < text.size();) {
        const std::size_t begin = i;
        const int first = kind(utf8_at(text, i).value);
        while (i < text.size() && kind(utf8_at(text, i).value) == first) i += utf8_size(text[i]);
        pieces.push_back({{begin, i}, first == 1});
      }
    });
  }
};

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void cut(Words& words, Words& spare, Allowance& allowance) const override {
    Pattern::Finder finder(pattern_, allowance);
    cut_parts(words, spare, behavior_, [&](std::string_view text, std::vector<Piece>& pieces) {
      std::size_t kept = 0;
      finder.each_match(text, [&](std::size_t begin, std::size_t end) {
        if (kept != begin) pieces.push_back({{kept, begin}, invert_});
        pieces.push_back({{begin, end}, !invert_});
        kept = end;
      });
      if (kept != text.size()) pieces.push_back({{kept, text.size()}, invert_});
    });
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::int64_t length) : length_(length) {}
  void cut(Words& words, Words& spare, Allowance& /*allowance*/) const override {
    spare.parts.clear();
    for (const Part& part : words.parts) {
      for (std::size_t i = part.begin; i < part.end;) {
        const std::size_t begin = i;
        for (std::int64_t n = 0; n < length_ && i < part.end; ++n) {
          i += utf8_size(words.text.text[i]);
        }
        spare.parts.push_back({begin, i});
      }
    }
    std::swap(words.parts, spare.parts);
  }

 private:
  std::int64_t length_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<PreTokenizerPtr> steps) : steps_(std::move(steps)) {}
  void cut(Words& words, Words& spare, Allowance& allowance) const override {
    for (const PreTokenizerPtr& step : steps_) step->apply(words, spare, allowance);
  }

 private:
  std::vector<PreTokenizerPtr> steps_;
};

PreTokenizerPtr make_pre_tokenizer_sequence(const Config& config,
                                            const PreTokenizerOptions& options) {
  std::vector<PreTokenizerPtr> steps;
  const std::vector<Config> configs = config.objects("pretokenizers");
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const bool last = i + 1 == configs.size();
    steps.push_back(make_pre_tokenizer(configs[i], last ? options : PreTokenizerOptions{}));
  }
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

char32_t one_character(const Config& config, const std::string& key) {
  const std::string text = config.text(key);
  check(!text.empty() && utf8_size(text[0]) == text.size(), "{} must be one character",
        config.where(key));
  return utf8_at(text, 0).value;
}

PreTokenizerPtr make_pre_tokenizer_unplaced(const Config& config,
                                            const PreTokenizerOptions& options) {
  if (auto bytes = make_byte_level(config, options)) return bytes;
  if (auto metaspace = make_metaspace(config)) return metaspace;
  const std::string type = config.text("type");
  const auto behavior = [&](const char* fallback) {
    return split_behavior(config.text_or("behavior", fallback), config.where("behavior"));
  };
  if (type == "Sequence") return make_pre_tokenizer_sequence(config, options);
  if (type == "BertPreTokenizer") return std::make_unique<Bert>();
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return at_characters(is_space, SplitBehavior::removed);
  if (type == "Punctuation") return at_characters(is_punctuation, behavior("Isolated"));
  if (type == "Digits") {
    return at_characters(is_numeric, config.flag_or("individual_digits", false)
                                         ? SplitBehavior::isolated
                                         : SplitBehavior::contiguous);
  }
  if (type == "CharDelimiterSplit" || type == "Delimiter") {
    return at_characters([at = one_character(config, "delimiter")](char32_t c) { return c == at; },
                         SplitBehavior::removed);
  }
  if (type == "Split") {
    return std::make_unique<Split>(Pattern::from(config.object("pattern")), behavior(""),
                                   config.flag_or("invert", false));
  }
  if (type == "FixedLength") {
    return std::make_unique<FixedLength>(config.integer_or("length", 5, 1, 1 << 30));
  }
  fail(
      "{}: '{}' is not supported; supported are ByteLevel, Metaspace, BertPreTokenizer, "
      "Whitespace, WhitespaceSplit, Split, Digits, Punctuation, CharDelimiterSplit, FixedLength "
      "and Sequence",
      config.where("type"), shown_name(type));
}

}  // namespace

PreTokenizerPtr make_pre_tokenizer(const Config& config, const PreTokenizerOptions& options) {
  PreTokenizerPtr made = make_pre_tokenizer_unplaced(config, options);
  made->set_where(config.where("type"));
  return made;
}

bool ends_with_byte_level(const Config& config) {
  if (config.text("type") != "Sequence") return config.text("type") == "ByteLevel";
  const std::vector<Config> steps = config.objects("pretokenizers");
  return !steps.empty() && ends_with_byte_level(steps.back());
}

bool asks_for_origin(const Config& config) {
  for (const Config& step : config.objects("pretokenizers")) {
    if (asks_for_origin(step)) return true;
  }
  return config.text_or("prepend_scheme", "") == "first";
}

}  // namespace qkv::text

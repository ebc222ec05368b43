#include "text/decoder.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "io/shown.h"
#include "text/byte_alphabet.h"
#include "text/metaspace.h"
#include "text/model.h"
#include "text/pattern.h"
#include "text/replace.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

template <class F>
class Step final : public Decoder {
 public:
  explicit Step(F f) : f_(std::move(f)) {}
  void rewrite(std::vector<std::string>& tokens, Allowance& allowance) const override {
    if constexpr (std::is_invocable_v<const F&, std::vector<std::string>&>) {
      f_(tokens);
    } else {
      f_(tokens, allowance, where());
    }
  }

 private:
  F f_;
};

std::size_t bytes_of(const std::vector<std::string>& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

template <class F>
DecoderPtr step(F f) {
  return std::make_unique<Step<F>>(std::move(f));
}

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

void bytes_of_characters(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += alphabet_to_bytes(token).value_or(token);
  tokens.assign(1, repaired_utf8(bytes));
}

// Runs of "<0x..>" tokens: the text they are, or as many U+FFFD as there are bytes.
void bytes_of_tokens(std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_valid_utf8(bytes)) {
      result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), std::string(kReplacement));
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of_token(token); byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
      continue;
    }
    flush();
    result.push_back(std::move(token));
  }
  flush();
  tokens = std::move(result);
}

// English as it is written: no space before punctuation and contractions.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [old, replacement] : kRules) replace_all(text, old, replacement);
}

DecoderPtr make_wordpiece(const Config& config) {
  return step([prefix = config.text_or("prefix", "##"),
               clean = config.flag_or("cleanup", true)](std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        if (tokens[i].starts_with(prefix)) {
          tokens[i].erase(0, prefix.size());
        } else {
          tokens[i].insert(0, 1, ' ');
        }
      }
      if (clean) clean_up(tokens[i]);
    }
  });
}

DecoderPtr make_metaspace_decoder(const Config& config) {
  return step([options = metaspace_options(config)](std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool dropped = i == 0 && options.prepend != MetaspacePrepend::never;
      replace_all(tokens[i], options.replacement, dropped ? "" : " ");
    }
  });
}

DecoderPtr make_bpe_decoder(const Config& config) {
  return step([suffix = config.text_or("suffix", "</w>")](std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    }
  });
}

DecoderPtr make_replace(const Config& config) {
  return step(
      [pattern = Pattern::from(config.object("pattern")), content = config.text("content")](
          std::vector<std::string>& tokens, Allowance& allowance, const std::string& where) {
        std::size_t made = 0;
        Pattern::Finder finder(pattern, allowance);
        for (std::string& token : tokens) {
          std::string result;
          std::size_t kept = 0;
          finder.each_match(token, [&](std::size_t begin, std::size_t end) {
            made += content.size();
            allowance.check_bytes(made, where);
            result.append(token, kept, begin - kept).append(content);
            kept = end;
          });
          token = result.append(token, kept);
        }
      });
}

DecoderPtr make_strip(const Config& config) {
  constexpr std::int64_t kMost = 1 << 30;
  return step([content = config.text("content"), start = config.integer_or("start", 0, 0, kMost),
               stop = config.integer_or("stop", 0, 0, kMost)](std::vector<std::string>& tokens) {
    if (content.empty()) return;
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < start && rest.starts_with(content); ++i) {
        rest.remove_prefix(content.size());
      }
      for (std::int64_t i = 0; i < stop && rest.ends_with(content); ++i) {
        rest.remove_suffix(content.size());
      }
      token = std::string(rest);
    }
  });
}

DecoderPtr make_ctc(const Config& config) {
  return step([pad = config.text_or("pad_token", "<pad>"),
               space = config.text_or("word_delimiter_token", "|"),
               clean = config.flag_or("cleanup", true)](std::vector<std::string>& tokens) {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      replace_all(token, pad, "");
      if (!clean) continue;
      clean_up(token);
      replace_all(token, space, " ");
    }
    std::erase_if(tokens, [](const std::string& token) { return token.empty(); });
  });
}

DecoderPtr make_decoder_sequence(const Config& config) {
  std::vector<DecoderPtr> steps;
  for (const Config& inner : config.objects("decoders")) steps.push_back(make_decoder(inner));
  return step([steps = std::move(steps)](std::vector<std::string>& tokens, Allowance& allowance,
                                         const std::string& /*where*/) {
    for (const DecoderPtr& inner : steps) inner->apply(tokens, allowance);
  });
}

DecoderPtr make_decoder_unplaced(const Config& config) {
  const std::string type = config.text("type");
  if (type == "ByteLevel") return step(bytes_of_characters);
  if (type == "ByteFallback") return step(bytes_of_tokens);
  if (type == "Fuse") return step(fuse);
  if (type == "WordPiece") return make_wordpiece(config);
  if (type == "Metaspace") return make_metaspace_decoder(config);
  if (type == "BPEDecoder") return make_bpe_decoder(config);
  if (type == "Replace") return make_replace(config);
  if (type == "Strip") return make_strip(config);
  if (type == "CTC") return make_ctc(config);
  if (type == "Sequence") return make_decoder_sequence(config);
  fail(
      "{}: '{}' is not supported; supported are ByteLevel, WordPiece, Metaspace, BPEDecoder, "
      "ByteFallback, Fuse, Strip, Replace, CTC and Sequence",
      config.where("type"), shown_name(type));
}

}  // namespace

void Decoder::apply(std::vector<std::string>& tokens, Allowance& allowance) const {
  allowance.spend(kStepsOfComponent + bytes_of(tokens) + tokens.size(), where());
  rewrite(tokens, allowance);
  allowance.check_bytes(bytes_of(tokens), where());
}

DecoderPtr make_decoder(const Config& config) {
  DecoderPtr made = make_decoder_unplaced(config);
  made->set_where(config.where("type"));
  return made;
}

}  // namespace qkv::text

#include "codec.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "io/shown.h"
#include "qkv/tokenizer.h"
#include "text_model.h"

namespace qkv::cli {
namespace {

using Ids = std::vector<std::int64_t>;

// An empty prompt lets the model begin on its own, where it has a token for that.
Ids begun(Ids ids, const ModelInfo& info) {
  if (ids.empty() && info.bos_id >= 0) ids.push_back(info.bos_id);
  check(!ids.empty(), "the prompt is empty, and this {} has no token to begin with", info.family);
  return ids;
}

class TokenStream final : public TextStream {
 public:
  explicit TokenStream(Tokenizer tokenizer) : decoder_(std::move(tokenizer)) {}
  std::string push(std::int64_t id) override { return decoder_.push(id); }
  std::string finish() override { return decoder_.finish(); }

 private:
  DecodeStream decoder_;
};

class TokenizerCodec final : public Codec {
 public:
  TokenizerCodec(Tokenizer tokenizer, const ModelInfo& info)
      : tokenizer_(std::move(tokenizer)), info_(info) {}

  Ids encode(const std::string& prompt) const override {
    Ids ids = tokenizer_.encode(prompt);
    frame(tokenizer_, info_, ids);
    for (const std::int64_t id : ids) {
      check(id < info_.vocabulary, "the tokenizer gives id {}, but the model knows only {}", id,
            info_.vocabulary);
    }
    if (!is_decoder()) return begun(std::move(ids), info_);
    // A decoder goes on where the prompt stops: the template must not have ended it.
    const auto is_end = [&](std::int64_t id) {
      return std::find(info_.eos_ids.begin(), info_.eos_ids.end(), id) != info_.eos_ids.end();
    };
    while (!ids.empty() && is_end(ids.back()) && ids.back() != info_.bos_id) ids.pop_back();
    return begun(std::move(ids), info_);
  }

  std::unique_ptr<TextStream> stream(const Ids& prompt) const override {
    auto stream = std::make_unique<TokenStream>(tokenizer_);
    // What a token adds depends on what stands before it: a space, the rest of a character.
    if (is_decoder()) {
      for (const std::int64_t id : prompt) stream->push(id);
    }
    return stream;
  }

  std::optional<std::int64_t> stop_id(const std::string& stop) const override {
    const std::optional<std::int64_t> id = tokenizer_.id(stop);
    return id && tokenizer_.is_special(*id) ? id : std::nullopt;
  }

  // As text where it is some: "Ġ" is a space, and half a character only a name.
  std::string token(std::int64_t id, Side) const override {
    if (id >= tokenizer_.size()) return std::to_string(id);
    const std::string text = tokenizer_.decode(std::vector{id}, {.skip_special = false});
    const bool is_text = !text.empty() && text.find("\xEF\xBF\xBD") == std::string::npos;
    return is_text ? text : tokenizer_.token(id);
  }
  std::int64_t mask_id() const override { return tokenizer_.mask_id().value_or(-1); }

 private:
  bool is_decoder() const { return info_.kind == ModelKind::decoder; }

  Tokenizer tokenizer_;
  ModelInfo info_;
};

class SymbolStream final : public TextStream {
 public:
  explicit SymbolStream(const std::vector<std::string>& symbols) : symbols_(symbols) {}
  std::string push(std::int64_t id) override {
    const auto index = static_cast<std::size_t>(id);
    return index < symbols_.size() ? symbols_[index] : "";
  }
  std::string finish() override { return ""; }

 private:
  const std::vector<std::string>& symbols_;
};

class SymbolCodec final : public Codec {
 public:
  explicit SymbolCodec(const ModelInfo& info) : info_(info) {}

  Ids encode(const std::string& prompt) const override {
    return encode_by(prompt, info_.input_symbols);
  }
  Ids encode_target(const std::string& text) const override {
    Ids ids = encode_by(text, info_.output_symbols);
    ids.erase(ids.begin());
    return ids;
  }
  std::string token(std::int64_t id, Side side) const override {
    const auto& symbols = side == Side::input ? info_.input_symbols : info_.output_symbols;
    const auto at = static_cast<std::size_t>(id);
    if (at < symbols.size() && !symbols[at].empty()) return symbols[at];
    if (id == info_.bos_id) return "<s>";
    if (std::find(info_.eos_ids.begin(), info_.eos_ids.end(), id) != info_.eos_ids.end()) {
      return "</s>";
    }
    return fmt::format("<{}>", id);
  }

  std::unique_ptr<TextStream> stream(const Ids&) const override {
    return std::make_unique<SymbolStream>(info_.output_symbols);
  }
  std::optional<std::int64_t> stop_id(const std::string&) const override { return std::nullopt; }

 private:
  Ids encode_by(const std::string& prompt, const std::vector<std::string>& symbols) const {
    Ids ids;
    if (info_.bos_id >= 0) ids.push_back(info_.bos_id);
    for (std::size_t at = 0; at < prompt.size();) {
      const auto found = std::find_if(symbols.begin(), symbols.end(), [&](const std::string& s) {
        return !s.empty() && prompt.compare(at, s.size(), s) == 0;
      });
      check(prompt[at] != ' ' || found != symbols.end(),
            "'{}': this model reads one word at a time; give it a word per line with --lines",
            shown_name(prompt));
      check(found != symbols.end(), "'{}': this model does not know its byte {}; it reads {}",
            shown_name(prompt), at + 1, fmt::join(symbols, ""));
      ids.push_back(found - symbols.begin());
      at += found->size();
    }
    if (!info_.eos_ids.empty()) ids.push_back(info_.eos_ids.front());
    return begun(std::move(ids), info_);
  }

  ModelInfo info_;
};

class IdStream final : public TextStream {
 public:
  std::string push(std::int64_t id) override {
    const std::string text = (is_first_ ? "" : " ") + std::to_string(id);
    is_first_ = false;
    return text;
  }
  std::string finish() override { return ""; }

 private:
  bool is_first_ = true;
};

class IdCodec final : public Codec {
 public:
  explicit IdCodec(const ModelInfo& info) : info_(info) {}
  Ids encode(const std::string& prompt) const override {
    return begun(parse_ids(prompt, info_.vocabulary), info_);
  }
  std::unique_ptr<TextStream> stream(const Ids&) const override {
    return std::make_unique<IdStream>();
  }
  std::optional<std::int64_t> stop_id(const std::string& stop) const override {
    const Ids ids = parse_ids(stop, info_.vocabulary);
    check(ids.size() == 1, "--stop '{}': one id each", shown_name(stop));
    return ids.front();
  }
  bool shows_end() const override { return true; }
  std::string token(std::int64_t id, Side) const override { return std::to_string(id); }

 private:
  ModelInfo info_;
};

}  // namespace

std::string Codec::text(const Ids& written) const {
  const std::unique_ptr<TextStream> words = stream({});
  std::string all;
  for (const std::int64_t id : written) all += words->push(id);
  return all + words->finish();
}

std::unique_ptr<Codec> make_codec(const std::string& folder, const ModelInfo& info, bool ids_only) {
  if (ids_only) return std::make_unique<IdCodec>(info);
  if (!info.input_symbols.empty() && !info.output_symbols.empty()) {
    return std::make_unique<SymbolCodec>(info);
  }
  return std::make_unique<TokenizerCodec>(
      open_tokenizer(folder, "put the model's tokenizer beside it, or give token ids with --ids"),
      info);
}

std::vector<std::int64_t> parse_ids(const std::string& text, std::int64_t vocabulary) {
  Ids ids;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    if (*at == ' ' || *at == ',' || *at == '\t' || *at == '\n') {
      ++at;
      continue;
    }
    std::int64_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    check(error == std::errc() && id >= 0 && id < vocabulary,
          "'{}': ids are numbers from 0 to {}, separated by spaces or commas", shown_name(text),
          vocabulary - 1);
    ids.push_back(id);
    at = next;
  }
  return ids;
}

}  // namespace qkv::cli

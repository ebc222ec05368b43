#include "text/json_pipeline.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "text/hash.h"
#include "text/unicode.h"

namespace qkv::text {
namespace {

template <class Make>
auto make_if(const Config& config, const char* key, Make&& make) -> decltype(make(config)) {
  if (!config.has(key)) return nullptr;
  return make(config.object(key));
}

bool is_byte_level(const Config& config) {
  // With continuations marked by a prefix or words by a suffix, characters are what counts.
  const Config model = config.object("model");
  const bool plain = model.text_or("continuing_subword_prefix", "").empty() &&
                     model.text_or("end_of_word_suffix", "").empty();
  const bool bpe = model.text_or("type", "BPE") == "BPE";
  return plain && bpe && config.has("pre_tokenizer") &&
         ends_with_byte_level(config.object("pre_tokenizer"));
}

}  // namespace

JsonPipeline::JsonPipeline(TokenizerFile file) : file_(std::move(file)) {
  const Config& config = file_.config;
  const bool bytes = is_byte_level(config);
  normalizer_ = make_if(config, "normalizer", make_normalizer);
  pre_tokenizer_ = make_if(config, "pre_tokenizer", [&](const Config& inner) {
    return make_pre_tokenizer(inner, {.bytes_stay_bytes = bytes});
  });
  model_ = make_model(file_, bytes);
  added_ = AddedTokens(AddedTokens::read(config), *model_, normalizer_.get(),
                       config.where("added_tokens"));
  decoder_ = make_if(config, "decoder", make_decoder);
  std::optional<Config> post;
  if (config.has("post_processor")) post = config.object("post_processor");
  post_processor_ = make_post_processor(post);
  for (const Template* items : {&post_processor_.single, &post_processor_.pair}) {
    for (const TemplateItem& item : *items) {
      for (const TokenId id : item.ids) {
        check(id < size(), "{}: the post_processor adds the id {}, but there are {} tokens",
              file_.name, id, size());
      }
    }
  }
  if (pre_tokenizer_) {
    const Config inner = config.object("pre_tokenizer");
    needs_origins_ = asks_for_origin(inner) && (normalizer_ || inner.text("type") == "Sequence");
  }
}

void JsonPipeline::encode(std::string_view text, bool spans, Encoding& result) const {
  check(text.size() < std::numeric_limits<std::int32_t>::max(),
        "a text of {} bytes is too long to tokenize at once", text.size());
  const WorkspacePool::Loan loan(workspaces_);
  Workspace& work = *loan;
  work.allowance = Allowance(text.size());
  work.words.text.tracked = spans || needs_origins_;
  work.words.text.clear();
  work.outer_spaces.clear();
  const bool trims = !post_processor_.trims.empty();
  std::string repaired;
  AlignedText given;  // only where bytes had to be replaced and their places are asked for
  if (!is_valid_utf8(text)) {
    given.tracked = true;
    given.append_given(text, 0);
    repaired = given.text;
    text = repaired;
  }
  std::vector<TokenFinder::Found> found;
  added_.in_text().find(text, found, work.allowance);
  for (const auto& [part, token] : found) {
    const std::string_view inside = text.substr(part.begin, part.end - part.begin);
    if (token == nullptr) {
      encode_segment(inside, part.begin, work, result);
    } else {
      result.ids.push_back(token->id);
      result.spans.push_back({part.begin, part.end});
      if (trims) add_outer_spaces(inside, work);
    }
  }
  if (!spans) {
    result.spans.clear();
  } else {
    std::size_t spaces = work.outer_spaces.size();
    for (const OuterSpaces& outer : work.outer_spaces) spaces += outer.leading + outer.trailing;
    for (const PostProcessor::Trim& trim : post_processor_.trims) {
      work.allowance.spend(kStepsOfComponent + spaces, file_.name);
      trim_spans(trim, text, work.outer_spaces, result.spans);
    }
  }
  if (given.tracked) {  // spans are of the repaired text so far
    for (TokenSpan& span : result.spans) {
      if (span.begin == span.end) {
        span.begin = span.end = span.begin < given.from.size() ? given.from[span.begin].begin : 0;
      } else {
        span = {given.from[span.begin].begin, given.from[span.end - 1].end};
      }
    }
  }
}

void JsonPipeline::encode_segment(std::string_view text, std::size_t offset, Workspace& work,
                                  Encoding& result) const {
  AlignedText& words = work.words.text;
  words.clear();
  words.append_given(text, offset);
  work.words.offset = offset;
  if (normalizer_) {
    normalizer_->apply(words, work.spare.text, work.allowance);
    work.allowance.take_bytes(words.text.size(), normalizer_->where());
  }
  if (added_.in_normalized().empty()) {
    work.words.parts.assign(1, {0, words.text.size()});
    return encode_words(work, result);
  }
  std::vector<TokenFinder::Found> found;
  added_.in_normalized().find(words.text, found, work.allowance);
  if (found.size() == 1 && found[0].token == nullptr) {
    work.words.parts.assign(1, found[0].part);
    return encode_words(work, result);
  }
  const AlignedText all = words;
  for (const auto& [part, token] : found) {
    const TokenSpan span = all.tracked && part.begin < part.end
                               ? TokenSpan{all.from[part.begin].begin, all.from[part.end - 1].end}
                               : TokenSpan{};
    if (token != nullptr) {
      result.ids.push_back(token->id);
      result.spans.push_back(span);
      if (!post_processor_.trims.empty()) {
        const std::string_view text_found = all.text;
        add_outer_spaces(text_found.substr(part.begin, part.end - part.begin), work);
      }
      continue;
    }
    words.clear();
    words.tracked = all.tracked;
    words.append(all, part.begin, part.end);
    work.words.offset = offset + part.begin;
    work.words.parts.assign(1, {0, words.text.size()});
    encode_words(work, result);
  }
}

void JsonPipeline::encode_words(Workspace& work, Encoding& result) const {
  std::erase_if(work.words.parts, [](const Part& part) { return part.begin == part.end; });
  if (pre_tokenizer_) {
    pre_tokenizer_->apply(work.words, work.spare, work.allowance);
    work.allowance.take_bytes(work.words.text.text.size(), pre_tokenizer_->where());
  }
  const AlignedText& all = work.words.text;
  for (const Part& part : work.words.parts) {
    const auto word = std::string_view(all.text).substr(part.begin, part.end - part.begin);
    work.tokens.clear();
    model_->tokenize(word, all.tracked, work, work.tokens);
    for (const Token& token : work.tokens) {
      result.ids.push_back(token.id);
      if (!all.tracked) continue;
      TokenSpan span;
      if (token.begin < token.end) {
        span = {all.from[part.begin + token.begin].begin, all.from[part.begin + token.end - 1].end};
      }
      result.spans.push_back(span);
      if (!post_processor_.trims.empty()) {
        add_outer_spaces(model_->vocabulary().token(token.id), work);
      }
    }
  }
}

void JsonPipeline::add_outer_spaces(std::string_view token, Workspace& work) const {
  work.allowance.spend(token.size(), file_.name);
  work.outer_spaces.push_back(spaces_around(token));
}

Encoding JsonPipeline::surround(Encoding first, std::optional<Encoding> second,
                                bool special_tokens) const {
  Encoding result;
  const bool spans = first.spans.size() == first.ids.size();
  const auto append = [&](const Encoding& part, std::int64_t type) {
    result.ids.insert(result.ids.end(), part.ids.begin(), part.ids.end());
    result.spans.insert(result.spans.end(), part.spans.begin(), part.spans.end());
    result.type_ids.insert(result.type_ids.end(), part.ids.size(), type);
    result.is_special.insert(result.is_special.end(), part.ids.size(), 0);
  };
  const Template& items = second ? post_processor_.pair : post_processor_.single;
  check(!second || !items.empty(), "{}: the post_processor has no template for pairs", file_.name);
  for (const TemplateItem& item : items) {
    if (item.what == TemplateItem::What::first) {
      append(first, item.type);
    } else if (item.what == TemplateItem::What::second) {
      append(*second, item.type);
    } else if (special_tokens) {
      for (const TokenId id : item.ids) {
        result.ids.push_back(id);
        if (spans) result.spans.push_back({});
        result.type_ids.push_back(item.type);
        result.is_special.push_back(1);
      }
    }
  }
  return result;
}

std::optional<std::string_view> JsonPipeline::written(std::int64_t id,
                                                      const DecodeOptions& options) const {
  if (id < 0 || id >= size()) return {};
  const auto known = static_cast<TokenId>(id);
  const AddedToken* added = added_.find(known);
  if (added == nullptr && !model_->vocabulary().has(known)) return {};
  const std::string_view text =
      added != nullptr ? added_.written(*added) : model_->vocabulary().token(known);
  if (options.skip_special && added_.is_special(text)) return {};
  return text;
}

std::string JsonPipeline::decode(std::span<const std::int64_t> ids,
                                 const DecodeOptions& options) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  std::size_t bytes = 0;
  for (const std::int64_t id : ids) {
    const auto text = written(id, options);
    if (!text) continue;
    bytes += text->size() + 1;
    check_decoded(bytes, ids.size(), file_.name);
    tokens.emplace_back(*text);
  }
  if (decoder_) {
    Allowance allowance(bytes);
    decoder_->apply(tokens, allowance);
  } else {
    for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, 1, ' ');
  }
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

// A run of byte tokens is text only if all of it is valid.
bool JsonPipeline::is_open_ended(std::int64_t id, const DecodeOptions& options) const {
  const auto text = written(id, options);
  return !text || byte_of_token(*text) >= 0;
}

std::int64_t JsonPipeline::size() const {
  return std::max<std::int64_t>(model_->vocabulary().end(), added_.end());
}

std::optional<std::int64_t> JsonPipeline::id(std::string_view token) const {
  if (const AddedToken* added = added_.find(token)) return added->id;
  const TokenId id = model_->vocabulary().find(token);
  return id == kNoToken ? std::nullopt : std::optional<std::int64_t>(id);
}

std::string JsonPipeline::token(std::int64_t id) const {
  const auto known = static_cast<TokenId>(id);
  if (const AddedToken* added = added_.find(known)) return added->content;
  return std::string(model_->vocabulary().token(known));
}

std::uint64_t JsonPipeline::fingerprint() const { return hash_of(to_json()); }

bool JsonPipeline::is_special(std::int64_t id) const {
  const AddedToken* added = added_.find(static_cast<TokenId>(id));
  return added != nullptr && added->special;
}

std::optional<std::int64_t> JsonPipeline::unknown_id() const {
  return model_->unknown() == kNoToken ? std::nullopt
                                       : std::optional<std::int64_t>(model_->unknown());
}

}  // namespace qkv::text

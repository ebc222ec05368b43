#include "text/added_tokens.h"

#include <algorithm>

#include "core/check.h"
#include "text/unicode.h"

namespace qkv::text {
namespace {

bool is_word_character(char32_t c) { return is_word(c) || c == 0x200C || c == 0x200D; }

bool stands_alone(std::string_view text, const Part& part) {
  if (part.begin > 0) {
    if (is_word_character(utf8_at(text, utf8_before(text, part.begin)).value)) return false;
  }
  return part.end == text.size() || !is_word_character(utf8_at(text, part.end).value);
}

std::string normalized_content(const AddedToken& token, const Normalizer& normalizer,
                               Allowance& allowance) {
  AlignedText text, spare;
  text.text = token.content;
  normalizer.apply(text, spare, allowance);
  allowance.take_bytes(text.text.size(), normalizer.where());
  return text.text;
}

}  // namespace

TokenFinder::TokenFinder(const std::vector<AddedToken>& tokens,
                         const std::vector<ByteTrie::Key>& patterns, std::string where)
    : tokens_(tokens), where_(std::move(where)) {
  const bool any =
      std::ranges::any_of(patterns, [](const auto& key) { return !key.first.empty(); });
  if (!any) return;
  trie_ = ByteTrie(patterns);
  for (const auto& [text, index] : patterns) {
    if (!text.empty()) starts_[static_cast<unsigned char>(text[0])] = true;
  }
}

std::uint32_t TokenFinder::longest(std::string_view text, std::size_t at, std::size_t& end,
                                   Allowance& allowance) const {
  std::uint32_t index = ByteTrie::kNone, node = ByteTrie::kRoot;
  std::size_t i = at;
  for (; i < text.size(); ++i) {
    node = trie_.step(node, static_cast<unsigned char>(text[i]));
    if (node == ByteTrie::kNone) break;
    if (trie_.value(node) == ByteTrie::kNone) continue;
    index = trie_.value(node);
    end = i + 1;
  }
  allowance.spend(i - at, where_);
  return index;
}

void TokenFinder::find(std::string_view text, std::vector<Found>& found,
                       Allowance& allowance) const {
  std::size_t done = 0;
  Part spaces;  // the last that were looked at for a token on their left
  for (std::size_t at = 0; !empty() && at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    std::size_t end = at;
    const std::uint32_t index = longest(text, at, end, allowance);
    if (index == ByteTrie::kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    Part part{at, end};
    at = end;
    if (token.single_word && !stands_alone(text, part)) continue;
    if (token.left_strip) {
      while (part.begin > done) {
        const std::size_t before = utf8_before(text, part.begin);
        if (!is_space(utf8_at(text, before).value)) break;
        part.begin = before;
      }
      part.begin = std::max(part.begin, done);
    }
    if (token.right_strip) {
      if (part.end < spaces.begin || part.end > spaces.end) {
        spaces.begin = spaces.end = part.end;
        while (spaces.end < text.size() && is_space(utf8_at(text, spaces.end).value)) {
          spaces.end += utf8_size(text[spaces.end]);
        }
      }
      part.end = spaces.end;
    }
    if (part.begin >= part.end) continue;  // spaces that the token before took along
    if (done < part.begin) found.push_back({{done, part.begin}, nullptr});
    found.push_back({part, &token});
    done = part.end;
  }
  if (done < text.size()) found.push_back({{done, text.size()}, nullptr});
}

std::vector<AddedToken> AddedTokens::read(const Config& config) {
  std::vector<AddedToken> tokens;
  for (const Config& entry : config.objects("added_tokens")) {
    AddedToken token;
    token.content = entry.text("content");
    token.single_word = entry.flag_or("single_word", false);
    token.left_strip = entry.flag_or("lstrip", false);
    token.right_strip = entry.flag_or("rstrip", false);
    token.special = entry.flag_or("special", false);
    token.normalized = entry.flag_or("normalized", !token.special);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Model& model,
                         const Normalizer* normalizer, const std::string& where) {
  std::size_t bytes = 0;
  for (const AddedToken& token : tokens) bytes += token.content.size();
  Allowance allowance(bytes);
  auto next = static_cast<TokenId>(model.vocabulary().size());
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const auto known = by_content_.find(token.content);
    const TokenId in_model = model.vocabulary().find(token.content);
    token.id = known != by_content_.end() ? tokens_[known->second].id
               : in_model != kNoToken     ? in_model
                                          : next++;
    check(token.id <= kLargestId, "there are too many added tokens");
    if (token.normalized && normalizer != nullptr) {
      std::string changed = normalized_content(token, *normalizer, allowance);
      if (changed != token.content) normalized_[token.id] = std::move(changed);
    }
    if (token.special) special_.insert(token.content);
    end_ = std::max(end_, token.id + 1);
    const auto at = by_id_.find(token.id);
    if (at != by_id_.end()) {  // the later one counts
      tokens_[at->second] = std::move(token);
      continue;
    }
    by_id_[token.id] = by_content_[token.content] = tokens_.size();
    tokens_.push_back(std::move(token));
  }
  std::vector<ByteTrie::Key> given, normalized;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto index = static_cast<std::uint32_t>(i);
    if (tokens_[i].normalized) {
      normalized.push_back({written(tokens_[i]), index});
    } else {
      given.push_back({tokens_[i].content, index});
    }
  }
  in_text_ = TokenFinder(tokens_, given, where);
  in_normalized_ = TokenFinder(tokens_, normalized, where);
}

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::string_view AddedTokens::written(const AddedToken& token) const {
  const auto found = normalized_.find(token.id);
  return found == normalized_.end() ? std::string_view(token.content) : found->second;
}

}  // namespace qkv::text

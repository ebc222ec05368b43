// What stands around the tokens of a text: tokenizer.json's `post_processor`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "qkv/tokenizer.h"
#include "text/vocabulary.h"
#include "text/workspace.h"

namespace qkv::text {

struct TemplateItem {
  enum class What : std::uint8_t { first, second, special };
  What what = What::first;
  std::int64_t type = 0;
  std::vector<TokenId> ids{};  // of the special token
};
using Template = std::vector<TemplateItem>;

struct PostProcessor {
  // The spaces that byte-level tokens begin and end with are no part of their spans; a single one
  // at the beginning is, where a space was added there.
  struct Trim {
    bool prefix_space = true;
  };
  std::vector<Trim> trims;
  Template single, pair;

  std::size_t special_tokens(bool of_pair) const;  // how many the template adds
};

// The spaces a token begins and ends with, as byte-level tokens write them or as they are.
OuterSpaces spaces_around(std::string_view token);
// Takes spaces off the spans of the tokens of a text.
void trim_spans(const PostProcessor::Trim& trim, std::string_view text,
                const std::vector<OuterSpaces>& spaces, std::vector<TokenSpan>& spans);

// Null config: nothing is added.
PostProcessor make_post_processor(const std::optional<Config>& config);

}  // namespace qkv::text

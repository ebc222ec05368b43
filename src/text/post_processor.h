// What stands around the tokens of a text: tokenizer.json's `post_processor`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/vocabulary.h"

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

// Null config: nothing is added.
PostProcessor make_post_processor(const std::optional<Config>& config);

}  // namespace qkv::text

// What models share: a word asked for again is not worked out again.
#pragma once

#include "text/model.h"

namespace qkv::text {

class CachedModel : public Model {
 public:
  void tokenize(std::string_view word, bool spans, Workspace& work,
                std::vector<Token>& tokens) const final {
    if (spans || !WordCache::takes(word)) return work_out(word, work, tokens);
    WordCache::Entry& entry = work.cache.entry(word);
    if (entry.is(word)) {
      for (const TokenId id : entry.tokens()) tokens.push_back({id});
      return;
    }
    const std::size_t before = tokens.size();
    work_out(word, work, tokens);
    const std::size_t count = tokens.size() - before;
    if (count > WordCache::kMostTokens) return;
    for (std::size_t i = 0; i < count; ++i) entry.ids[i] = tokens[before + i].id;
    WordCache::put(entry, word, count);
  }

 protected:
  virtual void work_out(std::string_view word, Workspace& work,
                        std::vector<Token>& tokens) const = 0;
};

}  // namespace qkv::text

#include "models/source_tokens.h"

#include <algorithm>

#include "qkv/translate.h"

namespace qkv {

Ids encode_side(const Tokenizer& tokenizer, const ModelInfo& model, std::string_view text) {
  Ids ids = tokenizer.encode(text);
  const auto& ends = model.eos_ids;
  if (!ends.empty() && (ids.empty() || std::ranges::find(ends, ids.back()) == ends.end())) {
    ids.push_back(ends.front());
  }
  return ids;
}

Around around_text(const Tokenizer& tokenizer) {
  const Encoding sample = tokenizer.encode_spans("a");
  Around around;
  const auto is_text = [&](std::size_t i) {
    return i >= sample.is_special.size() || sample.is_special[i] == 0;
  };
  std::size_t first = 0, last = sample.ids.size();
  while (first < last && !is_text(first)) around.front.push_back(sample.ids[first++]);
  while (last > first && !is_text(last - 1)) --last;
  around.back.assign(sample.ids.begin() + static_cast<std::ptrdiff_t>(last), sample.ids.end());
  return around;
}

Ids prefix_tokens(const Tokenizer& tokenizer, const std::string& prefix) {
  if (prefix.empty()) return {};
  if (const auto id = tokenizer.id(prefix)) return {*id};
  return tokenizer.encode(prefix, {.special_tokens = false});
}

std::vector<std::int64_t> source_tokens(const Tokenizer& tokenizer, const ModelInfo& model,
                                        const std::string& text, const std::string& prefix) {
  Ids ids = encode_side(tokenizer, model, text);
  const Ids before = prefix_tokens(tokenizer, prefix);
  const std::size_t at = std::min(around_text(tokenizer).front.size(), ids.size());
  ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(at), before.begin(), before.end());
  return ids;
}

}  // namespace qkv

#include "text/sentencepiece_normalizer.h"

#include "text/metaspace.h"
#include "text/utf8.h"

namespace qkv::text {

UserDefined::UserDefined(const SentencePieceModel& model) {
  std::vector<ByteTrie::Key> keys;
  for (const auto& piece : model.pieces) {
    if (piece.type == SentencePieceModel::Type::user_defined) keys.push_back({piece.text, 0});
  }
  if (!keys.empty()) trie_ = ByteTrie(std::move(keys));
}

std::size_t UserDefined::longest(std::string_view text, std::size_t& looked) const {
  if (empty()) return 0;
  std::size_t size = 0;
  std::uint32_t node = ByteTrie::kRoot;
  for (std::size_t i = 0; i < text.size(); ++i) {
    ++looked;
    node = trie_.step(node, static_cast<unsigned char>(text[i]));
    if (node == ByteTrie::kNone) break;
    if (trie_.value(node) != ByteTrie::kNone) size = i + 1;
  }
  return size;
}

SentencePieceNormalizer::SentencePieceNormalizer(
    const SentencePieceModel& model, const SentencePieceModel::Normalization& normalization)
    : where_(model.name + ": precompiled_charsmap"),
      rules_(normalization.charsmap, where_),
      user_defined_(&normalization == &model.normalizer ? UserDefined(model) : UserDefined()),
      add_dummy_prefix_(normalization.add_dummy_prefix),
      remove_extra_spaces_(normalization.remove_extra_spaces),
      space_is_suffix_(model.space_is_suffix),
      space_(normalization.escape_spaces ? kMetaspace : " ") {}

// What the beginning of the text becomes: a user's string, what a rule says, or a character.
SentencePieceNormalizer::Prefix SentencePieceNormalizer::prefix(std::string_view text,
                                                                Allowance& allowance) const {
  if (user_defined_.empty() && rules_.empty()) {
    const std::size_t size = utf8_size(text[0]);
    return {text.substr(0, size), size};
  }
  std::size_t looked = 0;
  if (const std::size_t size = user_defined_.longest(text, looked)) {
    allowance.spend(looked, where_);
    return {text.substr(0, size), size};
  }
  const Charsmap::Rule rule = rules_.longest(text, looked);
  allowance.spend(looked + rule.replacement.size(), where_);
  if (rule.size > 0) return {rule.replacement, rule.size};
  const std::size_t size = utf8_size(text[0]);
  return {text.substr(0, size), size};
}

void SentencePieceNormalizer::apply(std::string_view text, bool origins, NormalizedText& result,
                                    Allowance& allowance) const {
  result.text.clear();
  result.from.clear();
  std::size_t consumed = 0;
  while (remove_extra_spaces_ && consumed < text.size()) {
    const Prefix next = prefix(text.substr(consumed), allowance);
    if (next.normalized != " ") break;
    consumed += next.size;
  }
  if (consumed == text.size()) return;
  result.text.reserve((text.size() - consumed) + 16);
  const auto append = [&](std::string_view bytes) {
    result.text += bytes;
    if (origins) {
      result.from.insert(result.from.end(), bytes.size(), static_cast<std::uint32_t>(consumed));
    }
  };
  if (!space_is_suffix_ && add_dummy_prefix_) append(space_);
  bool after_space = remove_extra_spaces_;
  while (consumed < text.size()) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    if (!origins && user_defined_.empty() && byte(consumed) != ' ' && byte(consumed) < 128 &&
        consumed + 1 < text.size() && byte(consumed + 1) < 128 &&
        rules_.leaves_alone(byte(consumed), byte(consumed + 1))) {
      result.text.push_back(text[consumed++]);
      after_space = false;
      continue;
    }
    const Prefix next = prefix(text.substr(consumed), allowance);
    std::string_view normalized = next.normalized;
    while (after_space && normalized.starts_with(' ')) normalized.remove_prefix(1);
    if (normalized.size() > next.size) {
      allowance.check_bytes(result.text.size() + normalized.size() * space_.size(), where_);
    }
    if (!normalized.empty()) {
      after_space = remove_extra_spaces_ && normalized.ends_with(' ');
      while (!normalized.empty()) {
        const std::size_t space = normalized.find(' ');
        append(normalized.substr(0, space));
        if (space == std::string_view::npos) break;
        append(space_);
        normalized.remove_prefix(space + 1);
      }
    }
    consumed += next.size;
  }
  while (remove_extra_spaces_ && result.text.ends_with(space_)) {
    const std::size_t size = result.text.size() - space_.size();
    if (origins) {
      consumed = result.from[size];
      result.from.resize(size);
    }
    result.text.resize(size);
  }
  if (space_is_suffix_ && add_dummy_prefix_) append(space_);
  if (origins) result.from.push_back(static_cast<std::uint32_t>(consumed));
}

}  // namespace qkv::text

// The rules of a charsmap, as the Hugging Face library applies them: to whole graphemes of less
// than six bytes, of which the shortest rule that matches the beginning replaces all.
#include <utf8proc.h>

#include <vector>

#include "text/base64.h"
#include "text/charsmap.h"
#include "text/normalizer.h"
#include "text/unicode_ages.h"

namespace qkv::text {
namespace {

constexpr std::size_t kLongestWhole = 5;

struct Mapped {
  char32_t value = 0;
  int change = 0;
};

// A character that utf8proc joins with its neighbours as Unicode 17 joins this one.
utf8proc_int32_t known_in_graphemes(char32_t c) {
  constexpr utf8proc_int32_t kMark = 0x300, kPrefix = 0x600, kLetter = 'a';
  if (extends_grapheme_since_15(c)) return kMark;
  if (c == 0x113D1) return kPrefix;
  if (c == 0x11A3A) return kLetter;  // a prefix up to Unicode 15
  return static_cast<utf8proc_int32_t>(c);
}

std::size_t grapheme_size(std::string_view text) {
  utf8proc_int32_t state = 0;
  const CodePoint first = utf8_at(text, 0);
  utf8proc_int32_t last = known_in_graphemes(first.value);
  std::size_t size = first.size;
  while (size < text.size()) {
    const CodePoint next = utf8_at(text, size);
    const utf8proc_int32_t known = known_in_graphemes(next.value);
    if (utf8proc_grapheme_break_stateful(last, known, &state)) break;
    size += next.size;
    last = known;
  }
  return size;
}

class CharsmapNormalizer final : public Normalizer {
 public:
  explicit CharsmapNormalizer(Charsmap rules) : rules_(std::move(rules)) {}

  void rewrite(AlignedText& text, AlignedText& spare, Allowance& allowance) const override {
    std::vector<Mapped> changes;  // only where origins are asked for
    bool modified = false;
    std::size_t made = 0;  // bytes of replacements
    spare.clear();
    const std::string_view all = text.text;
    const auto replace = [&](std::string_view old, std::string_view replacement) {
      modified = true;
      made += replacement.size();
      allowance.check_bytes(made, where());
      if (!text.tracked) {
        spare.text += replacement;
        return;
      }
      const auto removed = static_cast<int>(utf8_length(old));
      const auto added = static_cast<int>(utf8_length(replacement));
      for (std::size_t i = 0; i < replacement.size(); i += utf8_size(replacement[i])) {
        changes.push_back({utf8_at(replacement, i).value, 0});
      }
      for (int i = 0; i < added - removed; ++i) changes[changes.size() - 1 - i].change = 1;
      if (added < removed && !changes.empty()) changes.back().change += added - removed;
    };
    const auto keep = [&](std::size_t at, std::size_t size) {
      text.tracked ? changes.push_back({utf8_at(all, at).value, 0})
                   : void(spare.text.append(all, at, size));
    };
    for (std::size_t i = 0; i < all.size();) {
      const std::size_t end = i + next_grapheme(all.substr(i));
      if (end - i <= kLongestWhole) {
        const std::string_view whole = all.substr(i, end - i);
        if (const auto rule = rules_.shortest(whole); rule.size > 0) {
          replace(whole, rule.replacement);
          i = end;
          continue;
        }
      }
      for (; i < end; i += utf8_size(all[i])) {
        const std::string_view part = all.substr(i, utf8_size(all[i]));
        const auto rule = rules_.shortest(part);
        rule.size > 0 ? replace(part, rule.replacement) : keep(i, part.size());
      }
    }
    if (!modified) return;
    if (text.tracked) {
      Rewriter out(text, spare);
      for (const Mapped& c : changes) out.put(c.value, c.change);
    }
    spare.tracked = text.tracked;
    std::swap(text, spare);
  }

 private:
  // Two ASCII characters are never one grapheme, but for CR LF.
  static std::size_t next_grapheme(std::string_view text) {
    const auto ascii = [&](std::size_t i) { return static_cast<signed char>(text[i]) >= 0; };
    if (ascii(0) && (text.size() == 1 || (ascii(1) && text[0] != '\r'))) return 1;
    return grapheme_size(text);
  }

  Charsmap rules_;
};

}  // namespace

NormalizerPtr make_charsmap_normalizer(const Config& config) {
  if (config.text("type") != "Precompiled") return nullptr;
  const std::string where = config.where("precompiled_charsmap");
  return std::make_unique<CharsmapNormalizer>(
      Charsmap(decoded_base64(config.text_or("precompiled_charsmap", ""), where), where));
}

}  // namespace qkv::text

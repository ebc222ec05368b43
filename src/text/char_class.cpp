#include "text/char_class.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

namespace qkv::text {
namespace {

constexpr std::uint32_t bits(Category first, Category last) {
  std::uint32_t mask = 0;
  for (auto c = static_cast<unsigned>(first); c <= static_cast<unsigned>(last); ++c)
    mask |= 1U << c;
  return mask;
}

struct Name {
  std::string_view name;
  std::uint32_t categories;
};
using enum Category;
constexpr Name kClasses[] = {
    {"L", bits(lu, lo)},     {"Lu", bits(lu, lu)},          {"Ll", bits(ll, ll)},
    {"Lt", bits(lt, lt)},    {"Lm", bits(lm, lm)},          {"Lo", bits(lo, lo)},
    {"M", bits(mn, me)},     {"Mn", bits(mn, mn)},          {"Mc", bits(mc, mc)},
    {"Me", bits(me, me)},    {"N", bits(nd, no)},           {"Nd", bits(nd, nd)},
    {"Nl", bits(nl, nl)},    {"No", bits(no, no)},          {"P", bits(pc, po)},
    {"Pc", bits(pc, pc)},    {"Pd", bits(pd, pd)},          {"Ps", bits(ps, ps)},
    {"Pe", bits(pe, pe)},    {"Pi", bits(pi, pi)},          {"Pf", bits(pf, pf)},
    {"Po", bits(po, po)},    {"S", bits(sm, so)},           {"Sm", bits(sm, sm)},
    {"Sc", bits(sc, sc)},    {"Sk", bits(sk, sk)},          {"So", bits(so, so)},
    {"Z", bits(zs, zp)},     {"Zs", bits(zs, zs)},          {"Zl", bits(zl, zl)},
    {"Zp", bits(zp, zp)},    {"Cc", bits(cc, cc)},          {"Cf", bits(cf, cf)},
    {"Co", bits(co, co)},    {"Letter", bits(lu, lo)},      {"Number", bits(nd, no)},
    {"Punct", bits(pc, po)}, {"Punctuation", bits(pc, po)}, {"Symbol", bits(sm, so)}};

char32_t folded(char32_t c) {
  if (c == 0x130) return c;  // folds to two characters, unlike its lowercase
  const auto upper = utf8proc_toupper(static_cast<utf8proc_int32_t>(c));
  return static_cast<char32_t>(utf8proc_tolower(upper));
}
constexpr char32_t kCaseEnd = 0x1E944;  // no letter has case beyond

// What each character that folds to another one folds to, sorted by the latter.
struct Fold {
  char32_t to, from;
};
std::vector<Fold> make_folds() {
  std::vector<Fold> folds;
  for (char32_t c = 0; c < kCaseEnd; ++c) {
    if (const char32_t to = folded(c); to != c) folds.push_back({to, c});
  }
  std::ranges::stable_sort(folds, {}, &Fold::to);
  return folds;
}
const std::vector<Fold>& all_folds() {
  static const std::vector<Fold> folds = make_folds();
  return folds;
}

}  // namespace

bool is_word_outside_sets(char32_t c) {
  return is_word(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE);
}

bool Property::contains(char32_t c) const {
  bool found = false;
  switch (special) {
    case Special::none: found = (categories >> static_cast<unsigned>(category(c)) & 1) != 0; break;
    case Special::space: found = is_space(c); break;
    case Special::word: found = is_word_outside_sets(c); break;
    case Special::word_in_set: found = is_word(c); break;
    case Special::han: found = is_han(c); break;
  }
  return found != negated;
}

bool Property::named(std::string_view name, Property& property) {
  if (name == "Han") {
    property.special = Special::han;
    return true;
  }
  if (name == "Space" || name == "White_Space") {
    property.special = Special::space;
    return true;
  }
  const auto* found = std::ranges::find(kClasses, name, &Name::name);
  if (found == std::end(kClasses)) return false;
  property.categories = found->categories;
  return true;
}

void CharClass::add(const Property& property) {
  if (std::ranges::find(properties_, property) == properties_.end()) {
    properties_.push_back(property);
  }
}

void CharClass::add(const CharClass& other) {
  if (other.negated_ || !other.inner_.empty()) {
    inner_.push_back(other);
    sets_ += other.sets_;
    return;
  }
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  for (const Property& property : other.properties_) add(property);
}

void CharClass::ignore_case() {
  const std::vector<Range> written = ranges_;
  for (const Range& range : written) {
    if (range.last - range.first > 512) continue;  // a range of a whole script has both cases
    for (char32_t c = range.first; c <= range.last; ++c) {
      if (c >= 128) {
        const char32_t fold = folded(c);
        if (fold != c && folded(fold) == fold) add(fold, fold);
        const std::vector<Fold>& folds = all_folds();
        auto other = std::ranges::lower_bound(folds, fold, {}, &Fold::to);
        for (; other != folds.end() && other->to == fold; ++other) add(other->from, other->from);
        continue;
      }
      const char32_t lower = lowercase(c);
      if (lower < 'a' || lower > 'z') continue;
      add(lower, lower);
      add(lower - 32, lower - 32);
      if (lower == 's') add(0x17F, 0x17F);    // long s
      if (lower == 'k') add(0x212A, 0x212A);  // Kelvin
    }
  }
  join_ranges();  // or sets inside of sets would double each time
}

void CharClass::join_ranges() {
  std::ranges::sort(ranges_, {}, &Range::first);
  std::vector<Range> joined;
  for (const Range& range : ranges_) {
    if (joined.empty() || range.first > joined.back().last + 1) {
      joined.push_back(range);
    } else {
      joined.back().last = std::max(joined.back().last, range.last);
    }
  }
  ranges_ = std::move(joined);
}

void CharClass::finish() {
  join_ranges();
  for (CharClass& inner : inner_) inner.finish();
  for (char32_t c = 0; c < 128; ++c) ascii_[c] = contains_slowly(c);
}

bool CharClass::contains_slowly(char32_t c) const {
  const auto range = std::ranges::lower_bound(ranges_, c, {}, &Range::last);
  const bool found =
      (range != ranges_.end() && range->first <= c) ||
      std::ranges::any_of(properties_, [c](const Property& p) { return p.contains(c); }) ||
      std::ranges::any_of(inner_, [c](const CharClass& inner) { return inner.contains(c); });
  return found != negated_;
}

}  // namespace qkv::text

// From the text of a pattern to steps.
#include <algorithm>
#include <memory>
#include <optional>

#include "core/check.h"
#include "io/shown.h"
#include "text/regex.h"
#include "text/regex_block.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

using Op = RegexStep::Op;
constexpr std::uint32_t kMostRepeats = 1000;
constexpr std::size_t kMostSteps = 20'000;
constexpr int kDeepestGroups = 50;
constexpr std::size_t kLongestPattern = std::size_t{64} << 10;
constexpr std::size_t kMostSets = 64;  // negated ones inside of another

class Compiler {
 public:
  Compiler(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {
    check(pattern.size() <= kLongestPattern, "{}: a pattern of {} bytes, at most {} are supported",
          where, pattern.size(), kLongestPattern);
    check(is_valid_utf8(pattern), "{}: a pattern must be UTF-8", where);
  }

  RegexProgram compile() {
    Block piece = alternatives();
    check(done(), "{}: ')' without '(' at byte {} of the pattern", where_, at_);
    piece.steps.push_back({});
    for (CharClass& set : program_.classes) set.finish();
    program_.steps = std::move(piece.steps);
    for (RegexStep& step : program_.steps) {
      if (step.op == Op::split || step.op == Op::run) step.slot = program_.slots++;
    }
    return std::move(program_);
  }

 private:
  bool done() const { return at_ >= pattern_.size(); }
  bool starts(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!starts(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_character() {
    check(!done(), "{}: the pattern ends too early", where_);
    const CodePoint c = utf8_at(pattern_, at_);
    at_ += c.size;
    return c.value;
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    fail("{}: {} at byte {} of the pattern '{}' is not supported", where_, what, at_,
         shown_name(pattern_));
  }

  Block alternatives() {
    check(++depth_ <= kDeepestGroups, "{}: more than {} groups inside of each other", where_,
          kDeepestGroups);
    const bool outer_case = ignore_case_;
    std::vector<Block> choices{sequence()};
    std::size_t total = choices[0].steps.size();
    while (take("|")) {
      choices.push_back(sequence());
      total += choices.back().steps.size() + 2;
      check(total <= kMostSteps, "{}: the pattern is too large", where_);
    }
    ignore_case_ = outer_case;
    --depth_;
    return choice_of(choices);
  }

  Block sequence() {
    Block result;
    while (!done() && !starts("|") && !starts(")")) {
      const Block next = repeated();
      result.append(next);
      result.can_be_empty = result.can_be_empty && next.can_be_empty;
      check(result.steps.size() <= kMostSteps, "{}: the pattern is too large", where_);
    }
    return result;
  }

  std::optional<std::uint32_t> number() {
    std::optional<std::uint32_t> value;
    while (!done() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = value.value_or(0) * 10 + static_cast<std::uint32_t>(pattern_[at_++] - '0');
      check(*value <= kMostRepeats, "{}: more than {} repetitions", where_, kMostRepeats);
    }
    return value;
  }

  std::optional<Repetition> repetition() {
    Repetition repeat;
    bool braces = false;
    if (take("*")) {
      repeat = {0, RegexStep::kUnlimited};
    } else if (take("+")) {
      repeat = {1, RegexStep::kUnlimited};
    } else if (take("?")) {
      repeat = {0, 1};
    } else if (starts("{")) {
      const std::size_t start = at_++;
      const auto least = number();
      const bool comma = take(",");
      const auto most = comma ? number() : least;
      if (!take("}") || (!least && !most)) {  // a brace like any character
        at_ = start;
        return {};
      }
      braces = true;
      repeat = {least.value_or(0), most ? *most : RegexStep::kUnlimited};
      check(repeat.least <= repeat.most, "{}: a repetition of at least {} and at most {}", where_,
            repeat.least, repeat.most);
    } else {
      return {};
    }
    if (take("?")) {
      if (braces && repeat.least == repeat.most) unsupported("'{n}?'");
      repeat.greed = Greed::lazy;
    } else if (!braces && take("+")) {  // after braces a plus repeats the repetition
      repeat.greed = Greed::possessive;
    }
    return repeat;
  }

  Block repeated() {
    Block piece = atom();
    for (int repeats = 0; const auto repeat = repetition();) {
      check(++repeats <= kDeepestGroups, "{}: more than {} repetitions of each other", where_,
            kDeepestGroups);
      const bool unlimited = repeat->most == RegexStep::kUnlimited;
      if (unlimited && piece.can_be_empty) unsupported("repeating what may be empty");
      const std::size_t copies = unlimited ? repeat->least + 1 : repeat->most;
      check(is_run(piece, *repeat) || copies * (piece.steps.size() + 2) <= kMostSteps,
            "{}: the pattern is too large", where_);
      piece = repeated_block(piece, *repeat);
      check(piece.steps.size() <= kMostSteps, "{}: the pattern is too large", where_);
    }
    return piece;
  }

  Block single(Op op, std::uint32_t b = 0) {
    Block piece;
    piece.steps.push_back({.op = op, .b = b});
    return piece;
  }

  Block of_class(CharClass set) {
    Block piece;
    piece.steps.push_back(
        {.op = Op::one, .a = static_cast<std::uint32_t>(program_.classes.size())});
    program_.classes.push_back(std::move(set));
    piece.can_be_empty = false;
    return piece;
  }

  Block literal(char32_t c) {
    CharClass set;
    set.add(c, c);
    if (ignore_case_) set.ignore_case();
    return of_class(std::move(set));
  }

  Block close_group(Block inside) {
    check(take(")"), "{}: '(' without ')' in the pattern", where_);
    return inside;
  }

  Block look_behind(std::uint32_t negative) {
    const Block inside = close_group(alternatives());
    if (inside.steps.size() != 1 || inside.steps[0].op != Op::one) {
      unsupported("looking behind at more than one character");
    }
    Block piece = single(Op::behind, negative);
    piece.steps[0].a = inside.steps[0].a;
    return piece;
  }

  Block group() {
    if (take("?:")) return close_group(alternatives());
    if (take("?=")) return enclosed(Op::look, 0, close_group(alternatives()), true);
    if (take("?!")) return enclosed(Op::look, 1, close_group(alternatives()), true);
    if (take("?<=")) return look_behind(0);
    if (take("?<!")) return look_behind(1);
    if (take("?>")) {
      const Block inside = close_group(alternatives());
      return enclosed(Op::atomic, 0, inside, inside.can_be_empty);
    }
    if (take("?i:")) {
      const bool outer = std::exchange(ignore_case_, true);
      Block inside = close_group(alternatives());
      ignore_case_ = outer;
      return inside;
    }
    if (take("?i)")) {  // up to the end of the group it stands in
      ignore_case_ = true;
      return {};
    }
    if (starts("?")) unsupported("this kind of group");
    return close_group(alternatives());
  }

  Block atom() {
    if (take("(")) return group();
    if (take("[")) return of_class(bracket());
    if (take("^")) return single(Op::line_begin);
    if (take("$")) return single(Op::line_end);
    if (take("\\A")) return single(Op::text_begin);
    if (take("\\z")) return single(Op::text_end);
    if (take("\\Z")) return single(Op::last_line_end);
    if (take("\\b")) return single(Op::word_edge);
    if (take("\\B")) return single(Op::word_edge, 1);
    if (starts("*") || starts("+") || starts("?")) unsupported("a repetition of nothing");
    if (take(".")) {
      CharClass set;
      set.add('\n', '\n');
      set.negate();
      return of_class(std::move(set));
    }
    if (take("\\")) {
      CharClass set;
      if (class_escape(set, Property::Special::word)) return of_class(std::move(set));
      return literal(character_escape());
    }
    return literal(take_character());
  }

  // After a backslash: \s, \p{L} and the like, `word` being what \w means here; false when it is a
  // character's.
  bool class_escape(CharClass& set, Property::Special word) {
    check(!done(), "{}: the pattern ends with a backslash", where_);
    const char kind = pattern_[at_];
    Property property;
    switch (kind) {
      case 's':
      case 'S': property.special = Property::Special::space; break;
      case 'w':
      case 'W': property.special = word; break;
      case 'd':
      case 'D': Property::named("Nd", property); break;
      case 'p':
      case 'P': ++at_; return named_property(set, kind == 'P');
      default: return false;
    }
    property.negated = kind >= 'A' && kind <= 'Z';
    ++at_;
    set.add(property);
    return true;
  }

  bool named_property(CharClass& set, bool negated) {
    Property property;
    if (!take("{")) unsupported("\\p without braces");
    if (take("^")) negated = !negated;
    const std::size_t end = pattern_.find('}', at_);
    check(end != std::string_view::npos, "{}: \\p{{ without }} in the pattern", where_);
    const std::string_view name = pattern_.substr(at_, end - at_);
    if (!Property::named(name, property)) unsupported("the property " + std::string(name));
    at_ = end + 1;
    property.negated = negated;
    set.add(property);
    return true;
  }

  char32_t hexadecimal(std::size_t digits) {
    char32_t value = 0;
    std::size_t read = 0;
    for (; read < digits && !done(); ++read) {
      const char c = pattern_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    check(read > 0 && value <= 0x10FFFF, "{}: a character by number is wrong in the pattern",
          where_);
    return value;
  }

  char32_t character_escape() {
    const char32_t c = take_character();
    switch (c) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'a': return '\a';
      case 'e': return 0x1B;
      case '0': return 0;
      case 'u': return hexadecimal(4);
      case 'x': {
        if (!take("{")) return hexadecimal(2);
        const char32_t value = hexadecimal(6);
        check(take("}"), "{}: \\x{{ without }} in the pattern", where_);
        return value;
      }
      default: break;
    }
    const bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (word) unsupported("the escape \\" + to_utf8(c));
    return c;
  }

  CharClass bracket() {
    check(++depth_ <= kDeepestGroups, "{}: more than {} sets inside of each other", where_,
          kDeepestGroups);
    CharClass set;
    const bool negated = take("^");
    bool first = true;
    while (first || !starts("]")) {
      check(!done(), "{}: '[' without ']' in the pattern", where_);
      first = false;
      if (starts("[:")) unsupported("a POSIX set");
      if (starts("&&")) unsupported("an intersection of sets");
      if (take("[")) {
        set.add(bracket());
        check(set.sets() <= kMostSets, "{}: more than {} negated sets inside of each other", where_,
              kMostSets);
        continue;
      }
      if (take("\\")) {
        if (class_escape(set, Property::Special::word_in_set)) continue;
        range_from(set, character_escape());
        continue;
      }
      range_from(set, take_character());
    }
    take("]");
    if (ignore_case_) set.ignore_case();
    if (negated) set.negate();
    --depth_;
    return set;
  }

  void range_from(CharClass& set, char32_t first) {
    if (!starts("-") || pattern_.substr(at_).starts_with("-]")) return set.add(first, first);
    ++at_;
    const char32_t last = take("\\") ? character_escape() : take_character();
    check(first <= last, "{}: a range runs backwards in the pattern", where_);
    set.add(first, last);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool ignore_case_ = false;
  RegexProgram program_;
};

}  // namespace

RegexProgram compile_regex(std::string_view pattern, const std::string& where) {
  return Compiler(pattern, where).compile();
}

}  // namespace qkv::text

// Patterns of pre-tokenizers, in the part of Oniguruma's language they are written in: classes with
// properties, groups, alternatives, greedy, lazy and possessive repetition, looking ahead, one
// character of looking behind, (?i:...).
//
// Matching backtracks as Oniguruma does, with its stack on the heap and within a budget of steps
// proportional to the text: a pattern that would take longer is an Error, not a hang.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/char_class.h"

namespace qkv::text {

enum class Greed : std::uint8_t { greedy, lazy, possessive };

// One step of a compiled pattern.
struct RegexStep {
  enum class Op : std::uint8_t {
    one,     // a character of class a
    run,     // characters of class a, from `least` to `most` of them
    split,   // go on at a; if that fails, at b
    jump,    // go on at a
    look,    // what follows up to `accept` must match here (b: must not); go on at a
    atomic,  // the first match of what follows up to `accept`; go on at a
    behind,  // the character before is of class a (b: is not)
    line_begin,
    line_end,
    text_begin,
    text_end,
    last_line_end,
    word_edge,  // b: not there
    accept
  };
  Op op = Op::accept;
  Greed greed = Greed::greedy;
  std::uint32_t a = 0, b = 0;
  std::uint32_t least = 0, most = 0;
};

struct RegexProgram {
  std::vector<RegexStep> steps;
  std::vector<CharClass> classes;
};

// Throws Error that names the part that is not supported; `where` names the pattern.
RegexProgram compile_regex(std::string_view pattern, const std::string& where);

class Regex {
 public:
  Regex(std::string_view pattern, const std::string& where);

  // A search through one text, from left to right.
  class Search {
   public:
    Search(const Regex& regex, std::string_view text);
    // The next match that is not empty or does not touch the last one; false when there is none.
    bool next(std::size_t& begin, std::size_t& end);

   private:
    struct Frame {
      std::uint32_t step;
      std::size_t at, least;  // a run may give back characters from `at` down to `least`
    };
    static constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);
    std::size_t match(std::uint32_t step, std::size_t at);  // the end of it
    bool holds(const RegexStep& step, std::size_t at) const;
    std::size_t run_end(const RegexStep& step, std::size_t at, std::size_t& least);
    void spend(std::size_t steps);

    const Regex& regex_;
    std::string_view text_;
    std::size_t from_ = 0, last_end_ = kNoMatch, budget_;
    std::vector<Frame> stack_;
  };

 private:
  void find_first_bytes();
  bool add_first_bytes(std::uint32_t step, int depth);

  RegexProgram program_;
  std::string where_;
  bool can_start_[256] = {};  // bytes a match can start with
};

}  // namespace qkv::text

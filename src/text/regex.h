// Patterns of pre-tokenizers, in the part of Oniguruma's language they are written in: classes with
// properties, groups, alternatives, greedy, lazy and possessive repetition, looking ahead, one
// character of looking behind, (?i:...).
//
// Matching backtracks as Oniguruma does, with its stack on the heap. Nothing is captured, so
// whether a step leads to a match from a place of the text depends on these two alone: a search
// that takes long begins to remember which did not, and takes no more than steps times text from
// there on. What that does not bound (a body of `(?>...)` matched again and again) the allowance of
// the call does.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "text/allowance.h"
#include "text/char_class.h"
#include "text/regex_memo.h"

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
  static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

  Op op = Op::accept;
  Greed greed = Greed::greedy;
  std::uint32_t a = 0, b = 0;
  std::uint32_t least = 0, most = 0;
  std::uint32_t slot = 0;  // of splits and runs: their number in a RegexMemo
};

struct RegexProgram {
  std::vector<RegexStep> steps;
  std::vector<CharClass> classes;
  std::uint32_t slots = 0;
};

// Throws Error that names the part that is not supported; `where` names the pattern.
RegexProgram compile_regex(std::string_view pattern, const std::string& where);

class Regex {
 public:
  Regex(std::string_view pattern, const std::string& where);

  // Searches through texts, one after the other, each from left to right. Its steps are taken from
  // `allowance`, which nothing else spends from in the meantime.
  class Search {
   public:
    // Steps for each byte before it begins to remember: more than patterns of language need.
    static constexpr std::size_t kStepsBeforeMemo = 64;
    Search(const Regex& regex, Allowance& allowance,
           std::size_t steps_before_memo = kStepsBeforeMemo);
    ~Search() { allowance_.set_steps(left_ + reserve_); }
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

    void start(std::string_view text);
    // The next match that is not empty or does not touch the last one; false when there is none.
    bool next(std::size_t& begin, std::size_t& end);

   private:
    struct Frame {
      std::uint32_t step;
      std::uint32_t path;     // how much of path_ was there
      std::size_t at, least;  // a run may give back characters from `at` down to `least`
    };
    static constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);
    std::size_t match(std::uint32_t step, std::size_t at);  // the end of it
    bool looks_ahead(std::uint32_t step, std::size_t at);
    bool holds(const RegexStep& step, std::size_t at) const;
    std::size_t run_end(const RegexStep& step, std::size_t at, std::size_t& least);
    bool enter_remembered_run(std::uint32_t pc, std::size_t& at);
    std::size_t remembered_end(const RegexStep& step, std::size_t at, std::size_t& least);
    RegexMemo::Outcome enter_remembered_split(const RegexStep& step, std::size_t at);
    void note_failure(std::size_t bottom, std::size_t path);
    void push(std::uint32_t step, std::size_t at, std::size_t least) {
      if (stack_.size() == stack_.capacity()) grow_stack();
      const auto path = static_cast<std::uint32_t>(remembers_ ? path_.size() : 0);
      stack_.push_back({step, path, at, least});
    }
    void grow_stack();
    void add_to_path(const RegexMemo::State& state);
    void forget_path(std::size_t size, RegexMemo::Outcome outcome);
    void spend(std::size_t steps) {
      if (steps > left_) spend_reserve(steps);
      left_ -= steps;
    }
    void spend_reserve(std::size_t steps);

    const Regex& regex_;
    Allowance& allowance_;
    std::string_view text_;
    std::size_t from_ = 0, last_end_ = kNoMatch;
    std::size_t steps_before_memo_;
    std::size_t left_ = 0, reserve_;  // steps until it remembers, and after that
    std::vector<Frame> stack_;
    std::size_t most_frames_ = 0;
    bool remembers_ = false;
    RegexMemo memo_;
    std::vector<RegexMemo::State> path_;  // how the match so far came here, in splits and runs
  };

 private:
  void find_first_bytes();

  RegexProgram program_;
  std::string where_;
  bool can_start_[256] = {};  // bytes a match can start with
};

}  // namespace qkv::text

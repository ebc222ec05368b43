// Patterns against what Oniguruma matches, plain and with what a search remembers when it takes
// long, and patterns that would take for ever.
#include "text/regex.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>

#include "expect_error.h"

namespace qkv::text {
namespace {

using Matches = std::vector<std::pair<std::size_t, std::size_t>>;

constexpr std::size_t kAtOnce = 0;  // remembers from the first step on

// Matches that are not empty.
Matches matches(const std::string& pattern, std::string_view text,
                std::size_t steps_before_memo = Regex::Search::kStepsBeforeMemo) {
  const Regex regex(pattern, "pattern");
  Allowance allowance(text.size());
  Regex::Search search(regex, allowance, steps_before_memo);
  search.start(text);
  Matches found;
  for (std::size_t begin = 0, end = 0; search.next(begin, end);) {
    if (begin < end) found.push_back({begin, end});
  }
  return found;
}

std::string repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(Regex, MatchesAsOniguruma) {
  const struct {
    const char* pattern;
    const char* text;
    Matches expected;
  } cases[] = {
      {R"(a|ab)", "abab", {{0, 1}, {2, 3}}},
      {R"(ab|a)", "abab", {{0, 2}, {2, 4}}},
      {R"((?:a|ab)(?:c|bcd))", "abcdabc", {{0, 4}, {4, 7}}},
      {R"(a*)", "baac", {{1, 3}}},
      {R"(a*?)", "baa", {}},
      {R"(a+?)", "aaa", {{0, 1}, {1, 2}, {2, 3}}},
      {R"(a??b)", "aab", {{1, 3}}},
      {R"((?:a+)+b)", "aaaab aaac", {{0, 5}}},
      {R"((?:a|a)*b)", "aaab aaa", {{0, 4}}},
      {R"((?:ab?)*+b)", "abab", {{1, 2}, {3, 4}}},
      {R"((?>a+)b)", "aaab", {{0, 4}}},
      {R"((?>a|ab)c)", "abc ac", {{4, 6}}},
      {R"((?>(?:a|b)*)c)", "ababc", {{0, 5}}},
      {R"(a++a)", "aaa", {}},
      {R"(a?+a)", "aa", {{0, 2}}},
      {R"((?=a*b)a)", "aabaa", {{0, 1}, {1, 2}}},
      {R"((?!a*b)a)", "aabaa", {{3, 4}, {4, 5}}},
      {R"((?=(?:a|b)*c)[ab])", "abab c ab", {}},
      {R"((?=.*x.*y)a)", "aa x a y a", {{0, 1}, {1, 2}}},
      {R"((?!.*x)a)", "a x a", {{4, 5}}},
      {R"((?=(?=a)a*b)a+)", "aab aa", {{0, 2}}},
      {R"((?!(?!a)b)[ab])", "ab", {{0, 1}}},
      {R"((?>(?=a)a|b)+)", "aab", {{0, 3}}},
      {R"((?:(?=a)a|(?=b)b)+c)", "abac", {{0, 4}}},
      {R"((?<=a)b|a(?!b))", "ab aa b", {{1, 2}, {3, 4}, {4, 5}}},
      {R"((?<![ab])c)", "ac c bc", {{3, 4}}},
      {R"(^a|a$)", "aa\na a", {{0, 1}, {1, 2}, {3, 4}, {5, 6}}},
      {R"(\Aa|a\z|a\Z)", "aa\na\n", {{0, 1}, {3, 4}}},
      {R"(\ba\b|\Bb)", "a ab b", {{0, 1}, {3, 4}}},
      {R"(a{2})", "aaaaa", {{0, 2}, {2, 4}}},
      {R"(a{2,3})", "aaaaaaa", {{0, 3}, {3, 6}}},
      {R"(a{0,2}b)", "aaab", {{1, 4}}},
      {R"((?:ab){1,2}?c)", "ababc", {{0, 5}}},
      {R"((?:a{1,2}){2})", "aaaaa", {{0, 4}}},
      {R"([ab]{2,}?c)", "ababc", {{0, 5}}},
      {R"((?:\p{N}{3})+(?!\p{N})|\p{N})", "1234567", {{0, 1}, {1, 7}}},
      {R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", "1234567 89", {{0, 1}, {1, 4}, {4, 7}, {8, 10}}},
      {R"(\s+(?!\S)|\s+)", "a   b  ", {{1, 3}, {3, 4}, {5, 7}}},
      {R"(\s*[\r\n]+|\s+(?!\S)|\s+)", "a \n\n  b   ", {{1, 4}, {4, 5}, {5, 6}, {7, 10}}},
      {R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)",
       "H\303\251 y1234 !!\n\nA",
       {{0, 3}, {3, 5}, {5, 8}, {8, 9}, {9, 14}, {14, 15}}},
      {R"((?i:'s|'T|'re)|\w+)",
       "I'S we'Re it't",
       {{0, 1}, {1, 3}, {4, 6}, {6, 9}, {10, 12}, {12, 14}}},
      {"(?i:\303\211)+", "\303\251\303\211e", {{0, 4}}},
      {R"((?i:[a-c]k))", "BK a\342\204\252", {{0, 2}, {3, 7}}},
      {R"((?i:[[a]b])+)", "AbaB", {{0, 4}}},
      {R"([^[^ab]]+)", "abcab", {{0, 2}, {3, 5}}},
      {R"((?:|a)b)", "ab b", {{0, 2}, {3, 4}}},
      {R"((?:a|)b)", "ab b", {{0, 2}, {3, 4}}},
      {R"((?:)|a)", "ab", {}},
      {R"(a(?:|b|c)d)", "abd acd ad", {{0, 3}, {4, 7}, {8, 10}}},
      {R"(x*y*z*b)", "xxyyzzb xxyyzz", {{0, 7}}},
      {R"((?:x{0,3}){0,3}b)", "xxxxxxxxxb xxxxxxxxxx b", {{0, 10}, {22, 23}}},
      {"\303\251+|[^\303\251]", "a\303\251\303\251\344\275\240b", {{0, 1}, {1, 5}, {5, 8}, {8, 9}}},
      {R"(.+)", "a\344\275\240\nb", {{0, 4}, {5, 6}}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(matches(c.pattern, c.text), c.expected) << c.pattern;
    EXPECT_EQ(matches(c.pattern, c.text, kAtOnce), c.expected) << c.pattern << ", remembering";
  }
}

// Writes a pattern of the language at random.
class RandomPattern {
 public:
  explicit RandomPattern(std::uint32_t seed) : random_(seed) {}
  std::string text() {
    std::string result;
    for (std::uint32_t size = below(24); size > 0; --size) result += "aabc"[below(4)];
    return result;
  }
  std::string choice(int depth) {
    std::string result = sequence(depth);
    for (std::uint32_t others = below(3); others > 0; --others) result += '|' + sequence(depth);
    return result;
  }

 private:
  std::uint32_t below(std::uint32_t end) { return random_() % end; }
  std::string sequence(int depth) {
    std::string result;
    for (std::uint32_t parts = below(4); parts > 0; --parts) result += part(depth);
    return result;
  }
  std::string part(int depth) {
    constexpr const char* kGroups[] = {"(?:", "(?:", "(?=", "(?!", "(?>"};
    constexpr const char* kAtoms[] = {"a", "b", "[ab]", "[^a]", ".", "(?<=a)", "\\b", "$"};
    constexpr const char* kTimes[] = {"*", "+", "?", "*?", "+?", "*+", "{2}", "{1,3}", "{0,2}?"};
    const std::uint32_t group = below(5), atom = below(8);
    const bool inner = depth > 0 && below(2) == 0;
    std::string result = inner ? kGroups[group] + choice(depth - 1) + ")" : kAtoms[atom];
    const bool repeats = inner ? group < 2 || group == 4 : atom < 5;
    if (repeats && below(2) == 0) result += kTimes[below(9)];
    return result;
  }

  std::mt19937 random_;
};

TEST(Regex, RememberingChangesNothing) {
  int compared = 0;
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    RandomPattern random(seed);
    const std::string pattern = random.choice(2);
    const std::string text = random.text();
    Matches plain;
    try {
      plain = matches(pattern, text, 1'000'000);
    } catch (const Error&) {  // repeats what may be empty, or takes too long without remembering
      continue;
    }
    ++compared;
    ASSERT_EQ(matches(pattern, text, kAtOnce), plain) << pattern << " in " << text;
  }
  EXPECT_GT(compared, 1500);
}

// Each would take a time that grows with the square of the text or faster; none may take more
// steps than the text allows.
TEST(Regex, WhatBacktrackedForeverIsLinear) {
  const std::string a = repeated("a", 10'000), ab = repeated("ab", 5000);
  for (const char* pattern :
       {"(a+)+b", "(a|a)*b", "(?:a|a)*c", "(?:a|aa)+c", "(?:a|b|ab)*c", "a+b", "a*?b", ".*x|q",
        "(?:a*b)+c", "a*a*a*a*a*a*a*a*b", "(?:.*x)?q", "(?:a|b)*?c", "(?:aa?)+b"}) {
    EXPECT_EQ(matches(pattern, a), Matches{}) << pattern;
    EXPECT_NO_THROW(matches(pattern, ab)) << pattern;
  }
  EXPECT_EQ(matches("(?=[^x]*x)a", a + 'x').size(), a.size());
  EXPECT_EQ(matches("(?=.*x.*y)a", a + 'x' + a + 'y').size(), a.size());
  EXPECT_EQ(matches("(?!(?:a|b)*c)a", ab).size(), ab.size() / 2);
  EXPECT_EQ(matches("(?=(?:aa|a)*b)a", a + 'b').size(), a.size());
  EXPECT_EQ(matches("\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", repeated("1", 15'000)).size(),
            5000U);
}

TEST(Regex, WhatTakesTooLongIsAnError) {
  const std::string ab = repeated("ab", 2000);
  for (const std::string& pattern :
       {std::string("(?>(?:a|b)*)c"), std::string("(?:a|b)*+c"), repeated("[ab]{0,1000}", 4) + "c",
        "(?:" + repeated("(?:|b)", 250) + "[ab])*", "(?:" + repeated("a|b|", 2000) + "ab)*c"}) {
    EXPECT_ERROR("pattern: more than", matches(pattern, ab)) << pattern;
  }
}

TEST(Regex, CompilingIsBounded) {
  EXPECT_EQ(matches(repeated("(?:|)", 28) + "a", "aaa").size(), 3U);
  EXPECT_EQ(matches(repeated("(?:|)", 5000) + "a", "aaa").size(), 3U);
  EXPECT_EQ(matches("(?i:" + repeated("[", 40) + "a" + repeated("]", 40) + ")", "bA"),
            (Matches{{1, 2}}));
  EXPECT_EQ(matches("(?i:" + repeated("\u00E9", 3000) + ")", "\u00C9"), Matches{});
  std::string set = "[";
  for (int i = 0; i < 20'000; ++i) set += 'a';
  EXPECT_EQ(matches(set + "]+", repeated("\u4F60", 20'000)), Matches{});
  for (const std::string& pattern :
       {std::string("((a{1,100}){1,100}){1,100}"), "(?:ab)" + repeated("++", 60),
        repeated("(", 60) + "a" + repeated(")", 60), repeated("[", 60) + "a" + repeated("]", 60),
        "[" + repeated("[^a]", 100) + "]", repeated("a|", 20'000) + "b", repeated("a", 30'000),
        "[" + repeated("a", 70'000) + "]"}) {
    EXPECT_ERROR("pattern: ", Regex(pattern, "pattern")) << pattern.substr(0, 40);
  }
}

}  // namespace
}  // namespace qkv::text

#include "text/regex.h"

#include <algorithm>

#include "core/check.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

using Op = RegexStep::Op;
constexpr std::size_t kBudgetPerByte = 256;
constexpr std::size_t kBudgetAtLeast = 1'000'000;

bool is_word_at(std::string_view text, std::size_t at) {
  return at < text.size() && is_word_outside_sets(utf8_at(text, at).value);
}

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where)
    : program_(compile_regex(pattern, where)), where_(where) {
  find_first_bytes();
}

void Regex::find_first_bytes() {
  if (add_first_bytes(0, 0)) return;
  std::fill(std::begin(can_start_), std::end(can_start_), true);
}

// False when a match that goes through this step may be empty, or is too much to follow.
bool Regex::add_first_bytes(std::uint32_t at, int depth) {
  constexpr int kFollowed = 64;
  if (depth > kFollowed) return false;
  const RegexStep& step = program_.steps[at];
  if (step.op == Op::split) {
    return add_first_bytes(step.a, depth + 1) && add_first_bytes(step.b, depth + 1);
  }
  if (step.op == Op::jump) return add_first_bytes(step.a, depth + 1);
  if (step.op != Op::one && step.op != Op::run) return false;
  for (unsigned byte = 0; byte < 256; ++byte) {
    can_start_[byte] |= byte >= 128 || program_.classes[step.a].contains(byte);
  }
  if (step.op == Op::one || step.least > 0) return true;
  return add_first_bytes(at + 1, depth + 1);
}

Regex::Search::Search(const Regex& regex, std::string_view text)
    : regex_(regex), text_(text), budget_(kBudgetAtLeast + kBudgetPerByte * text.size()) {}

bool Regex::Search::next(std::size_t& begin, std::size_t& end) {
  for (std::size_t at = from_; at <= text_.size();
       at += at < text_.size() ? utf8_size(text_[at]) : 1) {
    if (at < text_.size() && !regex_.can_start_[static_cast<unsigned char>(text_[at])]) continue;
    const std::size_t found = match(0, at);
    if (found == kNoMatch || (found == at && at == last_end_)) continue;
    begin = at;
    end = from_ = last_end_ = found;
    return true;
  }
  from_ = text_.size() + 1;
  return false;
}

void Regex::Search::spend(std::size_t steps) {
  check(budget_ >= steps, "{}: the pattern backtracks too much on this text", regex_.where_);
  budget_ -= steps;
}

bool Regex::Search::holds(const RegexStep& step, std::size_t at) const {
  switch (step.op) {
    case Op::line_begin: return at == 0 || (text_[at - 1] == '\n' && at < text_.size());
    case Op::line_end: return at == text_.size() || text_[at] == '\n';
    case Op::text_begin: return at == 0;
    case Op::text_end: return at == text_.size();
    case Op::last_line_end:
      return at == text_.size() || (at + 1 == text_.size() && text_[at] == '\n');
    case Op::word_edge: {
      const bool before = at > 0 && is_word_at(text_, utf8_before(text_, at));
      return (before != is_word_at(text_, at)) != (step.b != 0);
    }
    case Op::behind: {
      const bool found = at > 0 && regex_.program_.classes[step.a].contains(
                                       utf8_at(text_, utf8_before(text_, at)).value);
      return found != (step.b != 0);
    }
    default: return true;
  }
}

// The end of the longest run, or kNoMatch; `least` becomes where it may give back to.
std::size_t Regex::Search::run_end(const RegexStep& step, std::size_t at, std::size_t& least) {
  const CharClass& set = regex_.program_.classes[step.a];
  std::uint32_t count = 0;
  least = at;
  while (count < step.most && at < text_.size()) {
    const CodePoint c = utf8_at(text_, at);
    if (!set.contains(c.value)) break;
    at += c.size;
    if (++count == step.least) least = at;
  }
  spend(count);
  return count < step.least ? kNoMatch : at;
}

std::size_t Regex::Search::match(std::uint32_t pc, std::size_t at) {
  const std::size_t bottom = stack_.size();  // looking ahead calls this again
  const auto& steps = regex_.program_.steps;
  for (;;) {
    const RegexStep& step = steps[pc];
    spend(1);
    bool failed = false;
    switch (step.op) {
      case Op::accept: stack_.resize(bottom); return at;
      case Op::jump: pc = step.a; break;
      case Op::split:
        stack_.push_back({step.b, at, at});
        pc = step.a;
        break;
      case Op::one: {
        const CodePoint c = at < text_.size() ? utf8_at(text_, at) : CodePoint{};
        failed = c.size == 0 || !regex_.program_.classes[step.a].contains(c.value);
        at += c.size;
        ++pc;
        break;
      }
      case Op::run: {
        std::size_t least = at;
        const std::size_t end = run_end(step, at, least);
        failed = end == kNoMatch;
        ++pc;
        if (failed) break;
        if (step.greed == Greed::greedy && least < end) stack_.push_back({pc, end, least});
        at = end;
        break;
      }
      case Op::look:
        failed = (match(pc + 1, at) == kNoMatch) != (step.b != 0);
        pc = step.a;
        break;
      case Op::atomic:
        at = match(pc + 1, at);
        failed = at == kNoMatch;
        pc = step.a;
        break;
      default:
        failed = !holds(step, at);
        ++pc;
        break;
    }
    if (!failed) continue;
    if (stack_.size() == bottom) return kNoMatch;
    Frame& frame = stack_.back();
    pc = frame.step;
    at = frame.at;
    if (frame.at > frame.least) frame.at = at = utf8_before(text_, frame.at);
    if (frame.at <= frame.least) stack_.pop_back();
  }
}

}  // namespace qkv::text

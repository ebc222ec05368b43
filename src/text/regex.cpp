#include "text/regex.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "text/utf8.h"

namespace qkv::text {
namespace {

using Op = RegexStep::Op;
using Outcome = RegexMemo::Outcome;
constexpr std::size_t kShortestText = 64;  // remembering costs more than it saves
// What waits to be tried: bounds the memory of patterns that choose often within one character.
constexpr std::size_t kFramesPerByte = 32, kLeastFrames = std::size_t{64} << 10;

bool is_word_at(std::string_view text, std::size_t at) {
  return at < text.size() && is_word_outside_sets(utf8_at(text, at).value);
}

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where)
    : program_(compile_regex(pattern, where)), where_(where) {
  find_first_bytes();
}

// All bytes when a match may be empty or begin with what is more than a character.
void Regex::find_first_bytes() {
  std::vector<std::uint32_t> waiting{0};
  std::vector<bool> seen(program_.steps.size());
  while (!waiting.empty()) {
    const std::uint32_t at = waiting.back();
    waiting.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    const RegexStep& step = program_.steps[at];
    if (step.op == Op::split || step.op == Op::jump) {
      waiting.push_back(step.a);
      if (step.op == Op::split) waiting.push_back(step.b);
      continue;
    }
    if (step.op != Op::one && step.op != Op::run) {
      std::fill(std::begin(can_start_), std::end(can_start_), true);
      return;
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      can_start_[byte] |= byte >= 128 || program_.classes[step.a].contains(byte);
    }
    if (step.op == Op::run && step.least == 0) waiting.push_back(at + 1);
  }
}

bool RegexMemo::start(std::size_t slots, std::size_t size) {
  constexpr std::size_t kBytesPerByte = 64, kLeastBytes = std::size_t{1} << 20;
  places_ = size + 1;
  const std::size_t states = slots * places_;
  if (states / 4 > kLeastBytes + kBytesPerByte * size) return false;
  outcomes_.assign(states / 4 + 1, 0);
  runs_.assign(slots, {});
  return true;
}

Regex::Search::Search(const Regex& regex, Allowance& allowance, std::size_t steps_before_memo)
    : regex_(regex),
      allowance_(allowance),
      steps_before_memo_(steps_before_memo),
      reserve_(allowance.steps()) {}

void Regex::Search::start(std::string_view text) {
  text_ = text;
  from_ = 0;
  last_end_ = kNoMatch;
  remembers_ = false;
  path_.clear();
  const std::size_t all = left_ + reserve_;
  left_ = std::min(all, steps_before_memo_ * (kShortestText + text.size()));
  reserve_ = all - left_;
  most_frames_ = std::min<std::size_t>(kLeastFrames + kFramesPerByte * text.size(),
                                       std::numeric_limits<std::uint32_t>::max());
}

// From here on the search remembers, where there is memory for it.
void Regex::Search::spend_reserve(std::size_t steps) {
  left_ += std::exchange(reserve_, 0);
  if (steps > left_) allowance_.refuse_steps(regex_.where_);
  remembers_ = memo_.start(regex_.program_.slots, text_.size());
}

bool Regex::Search::next(std::size_t& begin, std::size_t& end) {
  for (std::size_t at = from_; at <= text_.size();
       at += at < text_.size() ? utf8_size(text_[at]) : 1) {
    if (at < text_.size() && !regex_.can_start_[static_cast<unsigned char>(text_[at])]) continue;
    const std::size_t found = match(0, at);
    path_.clear();
    if (found == kNoMatch || (found == at && at == last_end_)) continue;
    begin = at;
    end = from_ = last_end_ = found;
    return true;
  }
  from_ = text_.size() + 1;
  return false;
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

void Regex::Search::grow_stack() {
  if (stack_.size() >= most_frames_) allowance_.refuse_steps(regex_.where_);
  stack_.reserve(std::min(std::max<std::size_t>(64, 2 * stack_.size()), most_frames_));
}

void Regex::Search::add_to_path(const RegexMemo::State& state) {
  if (path_.size() >= most_frames_) allowance_.refuse_steps(regex_.where_);
  path_.push_back(state);
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

// Each step of `match` but accept moves (pc, at) on; where one fails, `resume` takes up what is
// left to try.
std::size_t Regex::Search::match(std::uint32_t pc, std::size_t at) {
  const std::size_t bottom = stack_.size();  // looking ahead calls this again
  const std::size_t path = path_.size();
  const auto& steps = regex_.program_.steps;
  for (;;) {
    const RegexStep& step = steps[pc];
    spend(1);
    bool failed = false;
    switch (step.op) {
      case Op::accept: stack_.resize(bottom); return at;
      case Op::jump: pc = step.a; break;
      case Op::split:
        if (remembers_) {
          const Outcome known = enter_remembered_split(step, at);
          if (known == Outcome::matched) {
            stack_.resize(bottom);
            return at;
          }
          failed = known == Outcome::failed;
          if (failed) break;
        }
        push(step.b, at, at);
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
        if (remembers_) {
          failed = !enter_remembered_run(pc++, at);
          break;
        }
        std::size_t least = at;
        const std::size_t end = run_end(step, at, least);
        failed = end == kNoMatch;
        ++pc;
        if (failed) break;
        if (step.greed == Greed::greedy && least < end) push(pc, end, least);
        at = end;
        break;
      }
      case Op::look:
        failed = looks_ahead(pc + 1, at) == (step.b != 0);
        pc = step.a;
        break;
      case Op::atomic: {
        const std::size_t size = path_.size();
        at = match(pc + 1, at);
        failed = at == kNoMatch;
        path_.resize(std::min(size, path_.size()));  // it may match elsewhere from the same states
        pc = step.a;
        break;
      }
      default:
        failed = !holds(step, at);
        ++pc;
        break;
    }
    if (!failed) continue;
    if (remembers_) note_failure(bottom, path);
    if (stack_.size() == bottom) return kNoMatch;
    Frame& frame = stack_.back();  // what was left to try last
    pc = frame.step;
    at = frame.at;
    if (frame.at > frame.least) frame.at = at = utf8_before(text_, frame.at);
    if (frame.at <= frame.least) stack_.pop_back();
  }
}

// Remembers what led nowhere: all that was entered since the last choice, and of a run the place
// that was tried of it.
void Regex::Search::note_failure(std::size_t bottom, std::size_t path) {
  if (stack_.size() == bottom) return forget_path(path, Outcome::failed);
  const Frame& frame = stack_.back();
  forget_path(frame.path, Outcome::failed);
  if (frame.at <= frame.least) return;
  const RegexStep& step = regex_.program_.steps[frame.step - 1];
  if (step.most != RegexStep::kUnlimited) return;
  RegexMemo::Run& run = memo_.run(step.slot);
  const bool is_next =
      run.failed_from == RegexMemo::Run::kNone
          ? frame.at == run.end
          : frame.at < run.failed_from && frame.at + utf8_size(text_[frame.at]) == run.failed_from;
  if (run.holds(frame.at) && is_next) run.failed_from = frame.at;
}

// States beyond the first `size` of the path are done with.
void Regex::Search::forget_path(std::size_t size, Outcome outcome) {
  for (std::size_t i = size; i < path_.size(); ++i) memo_.note(path_[i], outcome);
  path_.resize(std::min(size, path_.size()));
}

bool Regex::Search::looks_ahead(std::uint32_t step, std::size_t at) {
  const std::size_t size = path_.size();
  const bool found = match(step, at) != kNoMatch;
  if (found && remembers_) forget_path(size, Outcome::matched);  // where the match ends is all one
  return found;
}

RegexMemo::Outcome Regex::Search::enter_remembered_split(const RegexStep& step, std::size_t at) {
  const RegexMemo::State state{step.slot, at};
  const Outcome known = memo_.outcome(state);
  if (known == Outcome::unknown) add_to_path(state);
  return known;
}

bool Regex::Search::enter_remembered_run(std::uint32_t pc, std::size_t& at) {
  const RegexStep& step = regex_.program_.steps[pc];
  const RegexMemo::State state{step.slot, at};
  if (memo_.outcome(state) == Outcome::failed) return false;
  std::size_t least = at;
  std::size_t end = remembered_end(step, at, least);
  if (end == kNoMatch) return false;
  add_to_path(state);
  if (step.greed == Greed::greedy) {
    if (step.most == RegexStep::kUnlimited) {
      const std::size_t failed_from = memo_.run(step.slot).failed_from;
      if (failed_from <= least) return false;
      if (failed_from <= end) end = utf8_before(text_, failed_from);
    }
    if (least < end) push(pc + 1, end, least);
  }
  at = end;
  return true;
}

// run_end, which goes no way twice.
std::size_t Regex::Search::remembered_end(const RegexStep& step, std::size_t at,
                                          std::size_t& least) {
  if (step.most != RegexStep::kUnlimited) return run_end(step, at, least);
  RegexStep needed = step;
  needed.most = step.least;
  at = run_end(needed, at, least);
  if (at == kNoMatch) return kNoMatch;
  least = at;
  RegexMemo::Run& run = memo_.run(step.slot);
  if (run.holds(at)) return run.end;
  const CharClass& set = regex_.program_.classes[step.a];
  const std::size_t begin = at;
  std::size_t count = 0;
  for (; at < text_.size() && at != run.begin; ++count) {
    const CodePoint c = utf8_at(text_, at);
    if (!set.contains(c.value)) break;
    at += c.size;
  }
  spend(count);
  if (at == run.begin) {
    run.begin = begin;
    return run.end;
  }
  run = {begin, at, RegexMemo::Run::kNone};
  return at;
}

}  // namespace qkv::text

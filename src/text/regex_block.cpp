#include "text/regex_block.h"

#include <algorithm>
#include <utility>

namespace qkv::text {

void Block::append(const Block& other) {
  using enum RegexStep::Op;
  const auto base = static_cast<std::uint32_t>(steps.size());
  for (RegexStep step : other.steps) {
    if (step.op == split || step.op == jump || step.op == look || step.op == atomic) {
      step.a += base;
    }
    if (step.op == split) step.b += base;
    steps.push_back(step);
  }
}

// split first, others; first; jump to the end; and the others likewise
Block choice_of(const std::vector<Block>& choices) {
  std::uint32_t end = 0;
  for (const Block& choice : choices) end += choice.size() + 2;
  end -= 2;
  Block result;
  result.can_be_empty = std::ranges::any_of(choices, &Block::can_be_empty);
  for (std::size_t i = 0; i + 1 < choices.size(); ++i) {
    const std::uint32_t next = result.size() + choices[i].size() + 2;
    result.steps.push_back({.op = RegexStep::Op::split, .a = result.size() + 1, .b = next});
    result.append(choices[i]);
    result.steps.push_back({.op = RegexStep::Op::jump, .a = end});
  }
  result.append(choices.back());
  return result;
}

bool is_run(const Block& piece, const Repetition& repeat) {
  return piece.steps.size() == 1 && piece.steps[0].op == RegexStep::Op::one &&
         repeat.greed != Greed::lazy;
}

Block repeated_block(const Block& piece, const Repetition& repeat) {
  Block result;
  result.can_be_empty = repeat.least == 0 || piece.can_be_empty;
  if (is_run(piece, repeat)) {
    RegexStep run = piece.steps[0];
    run.op = RegexStep::Op::run;
    run.greed = repeat.greed;
    run.least = repeat.least;
    run.most = repeat.most;
    result.steps.push_back(run);
    return result;
  }
  Block body;
  for (std::uint32_t i = 0; i < repeat.least; ++i) body.append(piece);
  const bool lazy = repeat.greed == Greed::lazy;
  const auto branch = [&](std::uint32_t inside, std::uint32_t after) {
    return RegexStep{
        .op = RegexStep::Op::split, .a = lazy ? after : inside, .b = lazy ? inside : after};
  };
  if (repeat.most == RegexStep::kUnlimited) {
    const std::uint32_t start = body.size();
    body.steps.push_back(branch(start + 1, start + 2 + piece.size()));
    body.append(piece);
    body.steps.push_back({.op = RegexStep::Op::jump, .a = start});
  } else {
    const std::uint32_t optional = repeat.most - repeat.least;
    const std::uint32_t end = body.size() + optional * (piece.size() + 1);
    for (std::uint32_t i = 0; i < optional; ++i) {
      body.steps.push_back(branch(body.size() + 1, end));
      body.append(piece);
    }
  }
  if (repeat.greed != Greed::possessive) {
    result.steps = std::move(body.steps);
    return result;
  }
  return enclosed(RegexStep::Op::atomic, 0, body, result.can_be_empty);
}

Block enclosed(RegexStep::Op op, std::uint32_t b, const Block& inside, bool can_be_empty) {
  Block result;
  result.steps.push_back({.op = op, .a = inside.size() + 2, .b = b});
  result.append(inside);
  result.steps.push_back({});
  result.can_be_empty = can_be_empty;
  return result;
}

}  // namespace qkv::text

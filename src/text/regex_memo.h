// What a search of a pattern through one text has found out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace qkv::text {

class RegexMemo {
 public:
  enum class Outcome : std::uint8_t { unknown = 0, failed = 1, matched = 2 };
  // A split or a run, by its number, entered at a place of the text.
  struct State {
    std::uint32_t slot = 0;
    std::size_t at = 0;
  };
  // The last run of characters of its class that a run without limit found: from any place in
  // [begin, end] it reaches `end`, and to go on from [failed_from, end] leads nowhere.
  struct Run {
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t begin = kNone, end = kNone, failed_from = kNone;

    bool holds(std::size_t at) const { return begin <= at && at <= end && begin != kNone; }
  };

  // For `slots` of them and a text of `size` bytes. False when that would take more memory than is
  // in proportion to the text: 64 bytes for each byte, which 256 slots need, or 1 MiB.
  bool start(std::size_t slots, std::size_t size);

  Outcome outcome(const State& state) const {
    const std::size_t i = index(state);
    return static_cast<Outcome>(outcomes_[i / 4] >> i % 4 * 2 & 3);
  }
  void note(const State& state, Outcome outcome) {
    const std::size_t i = index(state);
    outcomes_[i / 4] |= static_cast<std::uint8_t>(static_cast<unsigned>(outcome) << i % 4 * 2);
  }
  Run& run(std::uint32_t slot) { return runs_[slot]; }

 private:
  std::size_t index(const State& state) const { return state.slot * places_ + state.at; }

  std::size_t places_ = 0;
  std::vector<std::uint8_t> outcomes_;  // two bits each
  std::vector<Run> runs_;               // by slot
};

}  // namespace qkv::text

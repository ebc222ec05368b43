// An id of each row of logits, a row at a time.
#include <algorithm>
#include <span>
#include <vector>

#include "core/sampling.h"
#include "core/threads.h"
#include "cpu/kernels.h"

namespace qkv::cpu {
namespace {

struct Candidate {
  std::uint32_t rank;
  std::int64_t id;
  std::uint64_t weight;
};

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.id < b.id;
}

// Everything that may be chosen but for top_k and top_p, in the order of ids.
std::vector<Candidate> candidates_of(std::span<const float> logits, float best,
                                     const SampleProblem& p) {
  std::vector<Candidate> candidates;
  const double floor = best + p.floor;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] >= floor)) continue;
    const std::uint64_t weight = weight_of(logits[i], best, p.rate);
    if (weight == 0) continue;
    candidates.push_back({rank_of(logits[i]), static_cast<std::int64_t>(i), weight});
  }
  return candidates;
}

using Place = std::vector<Candidate>::iterator;

std::uint64_t sum_of(Place begin, Place end) {
  std::uint64_t total = 0;
  for (; begin != end; ++begin) total += begin->weight;
  return total;
}

// The least likely of those that reach `wanted` together, in O(n): the half in which it lies is
// halved again.
Candidate last_to_reach(std::uint64_t wanted, Place begin, Place end) {
  while (end - begin > 1) {
    const Place middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, is_likelier);
    const std::uint64_t likelier = sum_of(begin, middle);
    if (likelier >= wanted) {
      end = middle;
    } else {
      wanted -= likelier;
      begin = middle;
    }
  }
  return *begin;
}

// Leaves the likeliest that top_k and top_p want, in the order of ids.
void cut(std::vector<Candidate>& candidates, const SampleProblem& p) {
  const bool by_count = p.top_k > 0 && p.top_k < static_cast<std::int64_t>(candidates.size());
  if (!by_count && p.top_p >= 1) return;
  std::vector<Candidate> ranked = candidates;
  Place end = ranked.end();
  if (by_count) {
    end = ranked.begin() + p.top_k;
    std::nth_element(ranked.begin(), end - 1, ranked.end(), is_likelier);
  }
  Candidate last = *(end - 1);
  if (p.top_p < 1) {
    const std::uint64_t wanted = share_of(sum_of(ranked.begin(), end), p.top_p);
    last = last_to_reach(wanted, ranked.begin(), end);
  }
  std::erase_if(candidates, [&](const Candidate& c) { return is_likelier(last, c); });
}

std::int64_t choose(std::span<const float> logits, std::int64_t draw, const SampleProblem& p) {
  std::size_t best = 0;
  std::uint32_t top = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::uint32_t rank = rank_of(logits[i]);
    if (rank <= top) continue;
    top = rank;
    best = i;
  }
  if (!is_finite_rank(top)) return -1;
  if (p.rate == 0) return static_cast<std::int64_t>(best);
  std::vector<Candidate> candidates = candidates_of(logits, logits[best], p);
  cut(candidates, p);
  std::uint64_t left = place_of(static_cast<std::uint64_t>(draw), sum_of(candidates.begin(), candidates.end()));
  for (const Candidate& c : candidates) {
    if (left < c.weight) return c.id;
    left -= c.weight;
  }
  return candidates.back().id;  // not reached: left is less than the sum
}

}  // namespace

void sample(const SampleProblem& p) {
  const std::int64_t classes = p.logits.size(1);
  parallel_for(p.logits.size(0), [&](std::int64_t row) {
    const float* from = p.logits.data<float>() + row * classes;
    std::span<const float> logits(from, static_cast<std::size_t>(classes));
    std::vector<float> changed;
    if (p.occurred.defined()) {
      changed.assign(logits.begin(), logits.end());
      const std::int64_t count = p.occurred.size(1);
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t id = p.occurred.data<std::int64_t>()[row * count + n];
        // From what it was: an id may stand here more than once.
        if (id >= 0 && id < classes) changed[id] = penalized(from[id], p.penalty);
      }
      logits = changed;
    }
    p.ids.data<std::int64_t>()[row] = choose(logits, p.draws.data<std::int64_t>()[row], p);
  });
}

}  // namespace qkv::cpu

// An id of each row of logits, a row at a time.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/sampling.h"
#include "core/threads.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"

namespace qkv::cpu {
namespace {

struct Candidate {
  std::uint32_t rank, id;
  std::uint64_t weight;
};

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.id < b.id;
}

std::uint64_t sum_of(const Candidate* begin, const Candidate* end) {
  std::uint64_t total = 0;
  for (; begin != end; ++begin) total += begin->weight;
  return total;
}

// The least likely of those that reach `wanted` together, in O(n): the half in which it lies is
// halved again.
Candidate last_to_reach(std::uint64_t wanted, Candidate* begin, Candidate* end) {
  while (end - begin > 1) {
    Candidate* middle = begin + (end - begin) / 2;
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

// Takes the weights away from all but the likeliest, which top_k and top_p want.
void cut(std::span<const float> logits, std::span<std::uint64_t> weights, const SampleProblem& p) {
  if (p.top_k == 0 && p.top_p >= 1) return;
  const Scratch<Candidate> candidates(static_cast<std::int64_t>(weights.size()));
  Candidate* const begin = candidates.get();
  Candidate* end = begin;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    *end++ = {rank_of(logits[i]), static_cast<std::uint32_t>(i), weights[i]};
  }
  if (p.top_k > 0 && p.top_k < end - begin) {
    std::nth_element(begin, begin + p.top_k - 1, end, is_likelier);
    end = begin + p.top_k;
  } else if (p.top_p >= 1) {
    return;
  }
  const Candidate last =
      p.top_p < 1 ? last_to_reach(share_of(sum_of(begin, end), p.top_p), begin, end) : end[-1];
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::uint32_t rank = rank_of(logits[i]);
    if (rank < last.rank || (rank == last.rank && i > last.id)) weights[i] = 0;
  }
}

// The lowest id of the largest logit; -1 where that is not finite, or something is not a number.
std::int64_t best_of(std::span<const float> logits) {
  float best = -INFINITY;
  bool are_numbers = true;
  for (const float logit : logits) {
    best = logit > best ? logit : best;
    are_numbers &= logit == logit;
  }
  if (!are_numbers || !std::isfinite(best)) return -1;
  return std::find(logits.begin(), logits.end(), best) - logits.begin();
}

std::int64_t choose(std::span<const float> logits, std::int64_t draw, const SampleProblem& p) {
  const std::int64_t likeliest = best_of(logits);
  if (likeliest < 0 || p.rate == 0) return likeliest;
  const float best = logits[static_cast<std::size_t>(likeliest)];
  const double floor = best + p.floor;
  const Scratch<std::uint64_t> room(static_cast<std::int64_t>(logits.size()));
  const std::span<std::uint64_t> weights(room.get(), logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = logits[i] >= floor ? weight_of(logits[i], best, p.rate) : 0;
  }
  cut(logits, weights, p);
  const std::uint64_t total = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  std::uint64_t left = place_of(static_cast<std::uint64_t>(draw), total);
  std::size_t id = 0;
  for (; left >= weights[id]; ++id) left -= weights[id];  // ends: `left` is less than the sum
  return static_cast<std::int64_t>(id);
}

}  // namespace

void sample(const SampleProblem& p) {
  const std::int64_t classes = p.logits.size(1);
  parallel_for(p.logits.size(0), [&](std::int64_t row) {
    const float* from = p.logits.data<float>() + row * classes;
    std::span<const float> logits(from, static_cast<std::size_t>(classes));
    Scratch<float> changed;
    if (p.occurred.defined()) {
      changed = Scratch<float>(classes);
      std::copy(logits.begin(), logits.end(), changed.get());
      const std::int64_t count = p.occurred.size(1);
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t id = p.occurred.data<std::int64_t>()[row * count + n];
        // From what it was: an id may stand here more than once.
        if (id >= 0 && id < classes) changed[id] = penalized(from[id], p.penalty);
      }
      logits = {changed.get(), logits.size()};
    }
    p.ids.data<std::int64_t>()[row] = choose(logits, p.draws.data<std::int64_t>()[row], p);
  });
}

}  // namespace qkv::cpu

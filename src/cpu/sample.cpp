// An id of each row of logits, a row at a time.
#include <algorithm>
#include <cmath>
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

// The `count` likeliest, without weights, in no order. A heap with the least likely of them on top:
// hardly any of many logits gets past it.
std::int64_t find_likeliest(std::span<const float> logits, std::int64_t count, Candidate* found) {
  Candidate* end = found;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const Candidate next{rank_of(logits[i]), static_cast<std::uint32_t>(i), 0};
    if (end - found == count) {
      if (!is_likelier(next, *found)) continue;
      std::pop_heap(found, end--, is_likelier);
    }
    *end++ = next;
    std::push_heap(found, end, is_likelier);
  }
  return end - found;
}

// Those that top_k leaves, with their weights, in the order of their ids.
std::int64_t find_candidates(std::span<const float> logits, float best, const SampleProblem& p,
                             Candidate* found) {
  Candidate* end = found;
  if (p.top_k > 0 && p.top_k < static_cast<std::int64_t>(logits.size())) {
    end += find_likeliest(logits, p.top_k, found);
    std::sort(found, end, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    for (Candidate* c = found; c != end; ++c) c->weight = weight_of(logits[c->id], best, p.rate);
    return std::remove_if(found, end, [](const Candidate& c) { return c.weight == 0; }) - found;
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::uint64_t weight = weight_of(logits[i], best, p.rate);
    if (weight != 0) *end++ = {rank_of(logits[i]), static_cast<std::uint32_t>(i), weight};
  }
  return end - found;
}

// Of the candidates, those that reach the share top_p together; their order stays.
std::int64_t cut(Candidate* begin, std::int64_t count, double top_p) {
  if (top_p >= 1) return count;
  const Scratch<Candidate> copy(count);
  std::copy_n(begin, count, copy.get());
  const Candidate last =
      last_to_reach(share_of(sum_of(begin, begin + count), top_p), copy.get(), copy.get() + count);
  return std::remove_if(begin, begin + count,
                        [&](const Candidate& c) { return is_likelier(last, c); }) -
         begin;
}

// Of the candidates, those that min_p leaves; their order stays.
std::int64_t cut_below(std::span<const float> logits, double floor, Candidate* begin,
                       std::int64_t count) {
  return std::remove_if(begin, begin + count,
                        [&](const Candidate& c) { return !(logits[c.id] >= floor); }) -
         begin;
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
  const Scratch<Candidate> room(static_cast<std::int64_t>(logits.size()));
  Candidate* const candidates = room.get();
  std::int64_t count = cut(candidates, find_candidates(logits, best, p, candidates), p.top_p);
  if (std::isfinite(p.floor)) count = cut_below(logits, best + p.floor, candidates, count);
  std::uint64_t left =
      place_of(static_cast<std::uint64_t>(draw), sum_of(candidates, candidates + count));
  const Candidate* chosen = candidates;
  for (; left >= chosen->weight; ++chosen) left -= chosen->weight;  // ends: `left` is below the sum
  return chosen->id;
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

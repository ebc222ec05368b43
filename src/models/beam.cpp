// Beam search, of many prompts at once. Each step ranks 2 * beams continuations of a prompt's
// running beams (more where there are several ways to end) by their summed log-probability. Those
// that end leave the running set, and count as finished if they are among the first `beams`; the
// others run on. A finished one scores sum / length^penalty.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/threads.h"
#include "models/decoding.h"
#include "models/sampling.h"

namespace qkv {
namespace {

struct Beam {
  std::vector<std::int64_t> tokens;
  double sum = 0;
};

struct Continuation {
  double sum;
  std::size_t beam;
  std::int64_t token;
};

class Finished {
 public:
  Finished(std::size_t size, double penalty) : size_(size), penalty_(penalty) {}

  double score(double sum, std::size_t length) const {
    return sum / std::pow(static_cast<double>(length), penalty_);
  }
  void add(std::vector<std::int64_t> tokens, double sum) {
    const double value = score(sum, tokens.size());
    beams_.push_back({std::move(tokens), value});
    std::stable_sort(beams_.begin(), beams_.end(),
                     [](const Beam& a, const Beam& b) { return a.sum > b.sum; });
    if (beams_.size() > size_) beams_.pop_back();
  }
  bool is_full() const { return beams_.size() == size_; }
  double worst() const { return beams_.back().sum; }
  const std::vector<std::int64_t>& best() const { return beams_.front().tokens; }

 private:
  std::size_t size_;
  double penalty_;
  std::vector<Beam> beams_;  // best first; `sum` holds the score
};

// One prompt on its way.
struct Search {
  std::size_t index;               // in the caller's order
  std::vector<std::int64_t> read;  // what the decoder read before it got tokens
  std::vector<Beam> running;       // their rows stand side by side
  Finished finished;

  // How much the decoder has read when its beams were given so many tokens.
  std::int64_t length(std::int64_t given) const {
    return static_cast<std::int64_t>(read.size()) + given;
  }
  std::vector<std::int64_t> read_by(const Beam& beam) const {
    std::vector<std::int64_t> all = read;
    all.insert(all.end(), beam.tokens.begin(), beam.tokens.end());
    return all;
  }
};

// Makes log-probabilities of a row of logits and penalizes these, as Hugging Face's beam search
// does; greedy and sampled generation penalize logits. They need not sum to a probability of one.
void penalize(std::span<float> row, double log_sum, const Search& search, const Beam& beam,
              double penalty) {
  for (float& value : row) value = static_cast<float>(value - log_sum);
  penalize_repetition(row, search.read_by(beam), penalty);
}

// Where only some tokens may follow, each of them is certain.
std::vector<Continuation> rank_forced(const Search& search,
                                      const std::vector<std::int64_t>& forced) {
  std::vector<Continuation> all;
  for (std::size_t b = 0; b < search.running.size(); ++b) {
    for (const std::int64_t token : forced) all.push_back({search.running[b].sum, b, token});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Continuation& a, const Continuation& b) { return a.sum > b.sum; });
  return all;
}

// The `kept` likeliest continuations of a search, whose first beam is row `first` of the logits.
std::vector<Continuation> rank(const Tensor& logits, std::size_t first, const Search& search,
                               const GenerateOptions& options, std::size_t kept) {
  const auto classes = static_cast<std::size_t>(logits.size(2));
  const std::size_t count = std::min(kept, classes);
  const auto is_better = [](const Continuation& a, const Continuation& b) { return a.sum > b.sum; };
  std::vector<Continuation> all;
  std::vector<std::int64_t> tokens(classes);
  for (std::size_t b = 0; b < search.running.size(); ++b) {
    const std::span<float> row(logits.data<float>() + (first + b) * classes, classes);
    double log_sum = log_sum_exp(row);
    if (options.repetition_penalty != 1) {
      penalize(row, log_sum, search, search.running[b], options.repetition_penalty);
      log_sum = 0;
    }
    // No more than `count` of one beam can be among the first `count` of all.
    std::iota(tokens.begin(), tokens.end(), 0);
    std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                      tokens.end(), [&](std::int64_t x, std::int64_t y) {
                        const float a = row[static_cast<std::size_t>(x)];
                        const float c = row[static_cast<std::size_t>(y)];
                        return a != c ? a > c : x < y;
                      });
    for (std::size_t i = 0; i < count; ++i) {
      const double log = row[static_cast<std::size_t>(tokens[i])] - log_sum;
      all.push_back({search.running[b].sum + log, b, tokens[i]});
    }
  }
  std::stable_sort(all.begin(), all.end(), is_better);
  if (all.size() > kept) all.resize(kept);
  return all;
}

// What the beams of a search become. Rows are counted from its first.
struct Step {
  std::vector<std::int64_t> rows{}, tokens{};
};

Step advance(Search& search, const std::vector<Continuation>& ranked,
             const GenerateOptions& options, const std::vector<std::int64_t>& stops) {
  const auto beams = static_cast<std::size_t>(options.beams);
  std::vector<Beam> next;
  Step step;
  for (std::size_t place = 0; place < ranked.size(); ++place) {
    const Continuation& c = ranked[place];
    std::vector<std::int64_t> sequence = search.running[c.beam].tokens;
    sequence.push_back(c.token);
    if (std::find(stops.begin(), stops.end(), c.token) != stops.end()) {
      if (place < beams) search.finished.add(std::move(sequence), c.sum);
    } else if (next.size() < beams) {
      next.push_back({std::move(sequence), c.sum});
      step.rows.push_back(static_cast<std::int64_t>(c.beam));
      step.tokens.push_back(c.token);
    }
  }
  search.running = std::move(next);
  if (search.running.empty() || !search.finished.is_full()) return step;
  const Beam& front = search.running.front();
  const double best = search.finished.score(front.sum, front.tokens.size());
  if (options.early_stopping || best <= search.finished.worst()) search.running.clear();
  return step;
}

std::vector<std::vector<std::int64_t>> texts_of(const std::vector<Search>& active) {
  std::vector<std::vector<std::int64_t>> texts;
  for (const Search& search : active) {
    for (const Beam& beam : search.running) texts.push_back(search.read_by(beam));
  }
  return texts;
}

}  // namespace

std::vector<std::vector<std::int64_t>> beam_search(
    const Model& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options, const std::vector<std::int64_t>& stops) {
  const auto beams = static_cast<std::size_t>(options.beams);
  // Enough for all beams to go on, however many ways there are to end.
  const std::size_t kept = std::max<std::size_t>(2, 1 + stops.size()) * beams;
  const Course course(model.info(), options);
  Decoding decoding(model, prompts, options);
  std::vector<std::vector<std::int64_t>> results(prompts.size());
  std::vector<Search> active;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    active.push_back({i, read_first(model.info(), prompts[i]), std::vector<Beam>(1),
                      Finished(beams, options.length_penalty)});
  }
  const auto conclude = [&](Search& search) {
    for (Beam& beam : search.running) search.finished.add(std::move(beam.tokens), beam.sum);
    results[search.index] = search.finished.best();
  };
  Tensor logits = to(decoding.start(), kCpu);  // where continuations are ranked
  for (std::int64_t given = 0; !active.empty(); ++given) {
    std::vector<std::size_t> firsts{0};
    for (const Search& search : active) firsts.push_back(firsts.back() + search.running.size());
    std::vector<std::vector<Continuation>> ranked(active.size());
    parallel_for(static_cast<std::int64_t>(active.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      const std::vector<std::int64_t> forced = course.forced(active[at].length(given), given);
      ranked[at] = forced.empty() ? rank(logits, firsts[at], active[at], options, kept)
                                  : rank_forced(active[at], forced);
    });
    std::vector<std::int64_t> rows, tokens;
    std::vector<Search> still;
    bool same_memory = true;  // every source keeps its place and its number of beams
    for (std::size_t i = 0; i < active.size(); ++i) {
      const std::size_t before = active[i].running.size();
      const Step step = advance(active[i], ranked[i], options, stops);
      const bool ends = course.ends(active[i].length(given), given);
      same_memory &= !ends && active[i].running.size() == before;
      if (ends || active[i].running.empty()) {
        conclude(active[i]);
        continue;
      }
      for (const std::int64_t row : step.rows) {
        rows.push_back(static_cast<std::int64_t>(firsts[i]) + row);
      }
      tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
      still.push_back(std::move(active[i]));
    }
    active = std::move(still);
    if (active.empty() || (options.on_step && !options.on_step())) break;
    if (decoding.has_room()) {
      decoding.reorder(rows, same_memory);
      logits = to(decoding.step(tokens), kCpu);
    } else {
      logits = to(decoding.read_anew(texts_of(active)), kCpu);
    }
  }
  for (Search& search : active) conclude(search);
  return results;
}

}  // namespace qkv

// Beam search. Each step ranks 2 * beams continuations of all running beams by their summed
// log-probability. Those that end leave the running set, and count as finished if they are among
// the first `beams`; the others run on. A finished one scores sum / length^penalty.
#include <algorithm>
#include <cmath>
#include <limits>

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

std::vector<Continuation> rank(const Tensor& logits, const std::vector<Beam>& running,
                               const GenerateOptions& options, std::size_t count) {
  const auto classes = static_cast<std::size_t>(logits.size(2));
  std::vector<Continuation> all;
  for (std::size_t b = 0; b < running.size(); ++b) {
    const std::span<float> row(logits.data<float>() + b * classes, classes);
    penalize_repetition(row, running[b].tokens, options.repetition_penalty);
    const std::vector<double> logs = log_probabilities(row);
    for (std::size_t t = 0; t < classes; ++t) {
      all.push_back({running[b].sum + logs[t], b, static_cast<std::int64_t>(t)});
    }
  }
  count = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                    [](const Continuation& a, const Continuation& b) { return a.sum > b.sum; });
  all.resize(count);
  return all;
}

}  // namespace

std::vector<std::int64_t> beam_search(const Model& model, const std::vector<std::int64_t>& prompt,
                                      const GenerateOptions& options,
                                      const std::vector<std::int64_t>& stops) {
  const auto beams = static_cast<std::size_t>(options.beams);
  Decoding decoding(model, {prompt}, options);
  std::vector<Beam> running(1);  // all begin as one
  Finished finished(beams, options.length_penalty);
  Tensor logits = decoding.start();
  for (std::int64_t step = 0; step < decoding.steps(); ++step) {
    const std::vector<Continuation> ranked = rank(logits, running, options, 2 * beams);
    std::vector<Beam> next;
    std::vector<std::int64_t> rows, tokens;
    for (std::size_t place = 0; place < ranked.size(); ++place) {
      const Continuation& c = ranked[place];
      std::vector<std::int64_t> sequence = running[c.beam].tokens;
      sequence.push_back(c.token);
      if (std::find(stops.begin(), stops.end(), c.token) != stops.end()) {
        if (place < beams) finished.add(std::move(sequence), c.sum);
      } else if (next.size() < beams) {
        next.push_back({std::move(sequence), c.sum});
        rows.push_back(static_cast<std::int64_t>(c.beam));
        tokens.push_back(c.token);
      }
    }
    running = std::move(next);
    if (running.empty()) break;
    if (finished.is_full()) {
      const double best = finished.score(running.front().sum, running.front().tokens.size());
      if (options.early_stopping || best <= finished.worst()) {
        running.clear();
        break;
      }
    }
    if (step + 1 == decoding.steps()) break;
    if (options.on_step && !options.on_step()) break;
    decoding.reorder(rows);
    logits = decoding.step(tokens);
  }
  for (Beam& beam : running) finished.add(std::move(beam.tokens), beam.sum);
  return finished.best();
}

}  // namespace qkv

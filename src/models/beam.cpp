// Beam search, of many prompts at once. Each step ranks 2 * beams continuations of a prompt's
// running beams (more where there are several ways to end) by their summed log-probability. Those
// that end leave the running set, and count as finished if they are among the first `beams`; the
// others run on. A finished one scores sum / length^penalty.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>

#include "core/threads.h"
#include "models/decoding.h"
#include "models/logits_processors.h"
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
    if (sum == 0) return 0;  // whatever the length, even where its power is out of range
    return sum / std::pow(static_cast<double>(length), penalty_);
  }
  void add(std::vector<std::int64_t> tokens, double sum) {
    const double value = score(sum, tokens.size());
    beams_.push_back({std::move(tokens), value});
    std::stable_sort(beams_.begin(), beams_.end(),
                     [](const Beam& a, const Beam& b) { return a.sum > b.sum; });
    if (beams_.size() > size_) beams_.pop_back();
  }
  bool is_empty() const { return beams_.empty(); }
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

// Ranks the continuations of searches by the rules of one call.
class Ranking {
 public:
  Ranking(const GenerationPlan& plan, const std::vector<std::vector<std::int64_t>>& prompts,
          std::int64_t vocabulary)
      : plan_(plan),
        prompts_(prompts),
        processors_(plan, vocabulary),
        // Enough for all beams to go on, however many ways there are to end.
        kept_(std::max<std::size_t>(2, 1 + plan.stops.size()) *
              static_cast<std::size_t>(plan.beams)) {}

  // The likeliest continuations of a search that got so many tokens, whose first beam is row
  // `first` of the logits. None: nothing may follow. Absent: the logits are not numbers.
  std::optional<std::vector<Continuation>> operator()(const Tensor& logits, std::size_t first,
                                                      const Search& search,
                                                      std::int64_t given) const {
    const auto classes = static_cast<std::size_t>(logits.size(2));
    const std::span<float> rows(logits.data<float>() + first * classes,
                                search.running.size() * classes);
    for (std::size_t b = 0; b < search.running.size(); ++b) {
      if (!are_numbers(rows.subspan(b * classes, classes))) return std::nullopt;
    }
    std::vector<Continuation> all;
    const std::vector<std::int64_t> forced = plan_.forced(search.length(given), given);
    for (std::size_t b = 0; b < search.running.size(); ++b) {
      if (forced.empty()) {
        add_likeliest(rows.subspan(b * classes, classes), search, b, all);
      } else {
        add_forced(forced, search.running[b].sum, b, all);
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Continuation& a, const Continuation& c) { return a.sum > c.sum; });
    if (forced.empty() && all.size() > kept_) all.resize(kept_);
    return all;
  }

 private:
  // Where only some tokens may follow, each of them is certain.
  void add_forced(const std::vector<std::int64_t>& forced, double sum, std::size_t beam,
                  std::vector<Continuation>& all) const {
    const double log = plan_.renormalize_logits ? -std::log(static_cast<double>(forced.size())) : 0;
    for (const std::int64_t token : forced) all.push_back({sum + log, beam, token});
  }

  void add_likeliest(std::span<float> row, const Search& search, std::size_t beam,
                     std::vector<Continuation>& all) const {
    double log_sum = log_sum_exp(row);
    if (processors_.are_any()) {
      // transformers changes log-probabilities of beams, and logits of all else. They need not sum
      // to a probability of one then.
      for (float& value : row) value = static_cast<float>(value - log_sum);
      const std::vector<std::int64_t> read = search.read_by(search.running[beam]);
      const auto given = static_cast<std::int64_t>(search.running[beam].tokens.size());
      processors_.apply(row, {prompts_[search.index], read, given});
      log_sum = plan_.renormalize_logits && are_numbers(row) ? log_sum_exp(row) : 0;
    }
    // No more than so many of one beam can be among the first of all.
    const std::size_t count = std::min(kept_, row.size());
    std::vector<std::int64_t> tokens(row.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                      tokens.end(), [&](std::int64_t x, std::int64_t y) {
                        const float a = row[static_cast<std::size_t>(x)];
                        const float c = row[static_cast<std::size_t>(y)];
                        return a != c ? a > c : x < y;
                      });
    for (std::size_t i = 0; i < count; ++i) {
      const float score = row[static_cast<std::size_t>(tokens[i])];
      if (!std::isfinite(score)) break;  // forbidden, as all that follow
      all.push_back({search.running[beam].sum + (score - log_sum), beam, tokens[i]});
    }
  }

  const GenerationPlan& plan_;
  const std::vector<std::vector<std::int64_t>>& prompts_;
  LogitsProcessors processors_;
  std::size_t kept_;
};

// What the beams of a search become. Rows are counted from its first.
struct Step {
  std::vector<std::int64_t> rows{}, tokens{};
};

Step advance(Search& search, const std::vector<Continuation>& ranked, const GenerationPlan& plan) {
  const auto beams = static_cast<std::size_t>(plan.beams);
  std::vector<Beam> next;
  Step step;
  for (std::size_t place = 0; place < ranked.size(); ++place) {
    const Continuation& c = ranked[place];
    std::vector<std::int64_t> sequence = search.running[c.beam].tokens;
    sequence.push_back(c.token);
    if (std::ranges::count(plan.stops, c.token) > 0) {
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
  // Longer beams score higher with a penalty above 0.
  const bool hopes = plan.early_stopping == EarlyStopping::never && plan.length_penalty > 0;
  const std::int64_t longest = plan.most(static_cast<std::int64_t>(search.read.size()));
  const double best = search.finished.score(
      front.sum, hopes ? static_cast<std::size_t>(longest) : front.tokens.size());
  const bool ends = plan.early_stopping == EarlyStopping::yes;
  if (ends || best <= search.finished.worst()) search.running.clear();
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
    const GenerateOptions& options, const GenerationPlan& plan) {
  const auto beams = static_cast<std::size_t>(plan.beams);
  const Ranking rank(plan, prompts, model.info().vocabulary);
  Decoding decoding(model, prompts, decoding_options(model, prompts, options, plan));
  std::vector<std::vector<std::int64_t>> results(prompts.size());
  std::vector<Search> active;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    active.push_back({i, read_first(model, plan, prompts[i]), std::vector<Beam>(1),
                      Finished(beams, plan.length_penalty)});
  }
  const auto conclude = [&](Search& search) {
    for (Beam& beam : search.running) search.finished.add(std::move(beam.tokens), beam.sum);
    results[search.index] = search.finished.best();
  };
  Tensor logits = to(decoding.start(), kCpu);  // where continuations are ranked
  for (std::int64_t given = 0; !active.empty(); ++given) {
    std::vector<std::size_t> firsts{0};
    for (const Search& search : active) firsts.push_back(firsts.back() + search.running.size());
    std::vector<std::optional<std::vector<Continuation>>> ranked(active.size());
    parallel_for(static_cast<std::int64_t>(active.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      ranked[at] = rank(logits, firsts[at], active[at], given);
    });
    std::vector<std::int64_t> rows, tokens;
    std::vector<Search> still;
    bool same_memory = true;  // every source keeps its place and its number of beams
    for (std::size_t i = 0; i < active.size(); ++i) {
      const std::size_t before = active[i].running.size();
      if (!ranked[i]) fail_of_logits(active[i].index, given);
      if (ranked[i]->empty() && active[i].finished.is_empty()) {
        fail_of_no_token(active[i].index, given);
      }
      const Step step = advance(active[i], *ranked[i], plan);
      const bool ends = plan.ends(active[i].length(given), given);
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

#include "qkv/bleu.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "core/check.h"
#include "qkv/version.h"

namespace qkv {
namespace {

constexpr std::size_t kOrders = 4;

using Words = std::vector<std::uint32_t>;
using Ngram = std::array<std::uint32_t, kOrders>;  // shorter ones end in 0, which is no word
using Counts = std::map<Ngram, std::int64_t>;

// Words as numbers from 1 on.
class WordTable {
 public:
  explicit WordTable(const BleuOptions& options) : options_(options) {}

  Words words(const std::string& line) {
    Words result;
    for (const std::string& word : bleu_words(line, options_)) {
      const auto next = static_cast<std::uint32_t>(numbers_.size() + 1);
      result.push_back(numbers_.try_emplace(word, next).first->second);
    }
    return result;
  }

 private:
  BleuOptions options_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

Counts count_ngrams(const Words& words) {
  Counts counts;
  for (std::size_t first = 0; first < words.size(); ++first) {
    Ngram ngram{};
    for (std::size_t i = 0; i < std::min(kOrders, words.size() - first); ++i) {
      ngram[i] = words[first + i];
      ++counts[ngram];
    }
  }
  return counts;
}

std::size_t order_of(const Ngram& ngram) {  // less one
  return static_cast<std::size_t>(std::ranges::find(ngram, 0U) - ngram.begin()) - 1;
}

// Adds one line. Each n-gram may match as often as the reference that has it most often; the
// length that counts is that of the reference nearest in length, the shorter of two.
void add_line(Bleu& bleu, const Words& hypothesis, const std::vector<Words>& references) {
  Counts most;
  const auto size = static_cast<std::int64_t>(hypothesis.size());
  std::int64_t nearest = -1;
  for (const Words& reference : references) {
    for (const auto& [ngram, count] : count_ngrams(reference)) {
      std::int64_t& known = most[ngram];
      known = std::max(known, count);
    }
    const auto length = static_cast<std::int64_t>(reference.size());
    const std::int64_t distance = std::abs(size - length), best = std::abs(size - nearest);
    if (nearest < 0 || distance < best || (distance == best && length < nearest)) nearest = length;
  }
  for (const auto& [ngram, count] : count_ngrams(hypothesis)) {
    const std::size_t order = order_of(ngram);
    bleu.totals[order] += count;
    if (const auto found = most.find(ngram); found != most.end()) {
      bleu.matches[order] += std::min(count, found->second);
    }
  }
  bleu.hypothesis_words += size;
  bleu.reference_words += nearest;
}

// From the counts, as sacreBLEU does it.
void finish(Bleu& bleu, bool smooth) {
  if (bleu.hypothesis_words < bleu.reference_words) {
    const double ratio = static_cast<double>(bleu.reference_words) /
                         static_cast<double>(std::max<std::int64_t>(bleu.hypothesis_words, 1));
    bleu.brevity_penalty = bleu.hypothesis_words > 0 ? std::exp(1 - ratio) : 0;
  }
  // Without a single match there is nothing to smooth.
  if (bleu.matches == decltype(bleu.matches){}) return;
  double halved = 1;
  double logs = 0;
  for (std::size_t n = 0; n < kOrders; ++n) {
    const auto total = static_cast<double>(bleu.totals[n]);
    if (total > 0 && bleu.matches[n] > 0) {
      bleu.precisions[n] = 100 * static_cast<double>(bleu.matches[n]) / total;
    } else if (total > 0 && smooth) {
      halved *= 2;
      bleu.precisions[n] = 100 / (halved * total);
    }
    logs += std::log(bleu.precisions[n]);  // -inf where there is none: the score is 0
  }
  bleu.score = bleu.brevity_penalty * std::exp(logs / kOrders);
}

}  // namespace

double Bleu::ratio() const {
  if (reference_words == 0) return 0;
  return static_cast<double>(hypothesis_words) / static_cast<double>(reference_words);
}

std::string to_string(const Bleu& bleu) {
  return fmt::format(
      "BLEU = {:.2f} {:.1f}/{:.1f}/{:.1f}/{:.1f} (BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len "
      "= "
      "{})",
      bleu.score, bleu.precisions[0], bleu.precisions[1], bleu.precisions[2], bleu.precisions[3],
      bleu.brevity_penalty, bleu.ratio(), bleu.hypothesis_words, bleu.reference_words);
}

Bleu bleu(const std::vector<std::string>& hypotheses,
          const std::vector<std::vector<std::string>>& references, const BleuOptions& options) {
  check(!hypotheses.empty(), "bleu: there are no hypotheses");
  check(!references.empty(), "bleu: there are no references");
  for (const auto& list : references) {
    check(list.size() == hypotheses.size(), "bleu: {} hypotheses, but {} references",
          hypotheses.size(), list.size());
  }
  Bleu result;
  WordTable table(options);
  for (std::size_t line = 0; line < hypotheses.size(); ++line) {
    std::vector<Words> lines;
    for (const auto& list : references) lines.push_back(table.words(list[line]));
    add_line(result, table.words(hypotheses[line]), lines);
  }
  finish(result, options.smooth);
  result.signature =
      fmt::format("nrefs:{}|case:{}|eff:no|tok:{}|smooth:{}|version:qkv-{}", references.size(),
                  options.lowercase ? "lc" : "mixed", to_string(options.tokenizer),
                  options.smooth ? "exp" : "none", kVersion);
  return result;
}

}  // namespace qkv

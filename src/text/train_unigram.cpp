// Unigram (Kudo 2018): begin with every piece that occurs often, give each a probability by
// expectation maximisation over all ways to cut the words, take away the pieces that are missed
// least, and repeat until few enough are left. Characters always stay, so that nothing seen in
// training is unknown.
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/check.h"
#include "text/byte_trie.h"
#include "text/metaspace.h"
#include "text/settings.h"
#include "text/train.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

constexpr std::size_t kLongestPiece = 16;      // characters
constexpr std::size_t kMostSeeds = 1'000'000;  // pieces to begin with
constexpr int kExpectations = 2;               // before each time pieces are taken away
constexpr double kKept = 0.75;                 // of the pieces, each time
constexpr double kRareBelow = 0.5;             // a piece expected less often than this goes
constexpr double kImpossible = -1e30;

struct UnigramPiece {
  std::string text;
  double score = 0;  // log of its probability
  bool is_character = false;
};

// log(e^a + e^b)
double log_add(double a, double b) {
  const double high = std::max(a, b), low = std::min(a, b);
  return low <= kImpossible ? high : high + std::log1p(std::exp(low - high));
}

// The derivative of log gamma, for x > 0: what pulls rare pieces down further than frequent ones.
double digamma(double x) {
  double result = 0;
  for (; x < 7; ++x) result -= 1 / x;
  x -= 0.5;
  const double square = 1 / (x * x);
  return result + std::log(x) + square * (1.0 / 24 - square * (7.0 / 960 - square * 31.0 / 8064));
}

// The pieces and how words are cut into them.
class Lattice {
 public:
  explicit Lattice(const std::vector<UnigramPiece>& pieces) : pieces_(pieces) {
    std::vector<ByteTrie::Key> keys;
    keys.reserve(pieces.size());
    for (std::uint32_t i = 0; i < pieces.size(); ++i) keys.push_back({pieces[i].text, i});
    trie_ = ByteTrie(std::move(keys));
  }

  // Adds `count` times the expected number of each piece in the word; returns log p(word).
  double add_expected(std::string_view word, double count, std::vector<double>& expected) {
    forward_.assign(word.size() + 1, kImpossible);
    backward_.assign(word.size() + 1, kImpossible);
    forward_[0] = backward_[word.size()] = 0;
    edges_.clear();
    for (std::size_t begin = 0; begin < word.size(); ++begin) {
      if (forward_[begin] <= kImpossible) continue;
      for_each_piece(word, begin, [&](std::size_t end, std::uint32_t piece) {
        edges_.push_back({begin, end, piece});
        forward_[end] = log_add(forward_[end], forward_[begin] + pieces_[piece].score);
      });
    }
    const double all = forward_[word.size()];
    for (auto edge = edges_.rbegin(); edge != edges_.rend(); ++edge) {
      const double through = backward_[edge->end] + pieces_[edge->piece].score;
      backward_[edge->begin] = log_add(backward_[edge->begin], through);
    }
    for (const Edge& edge : edges_) {
      const double score = pieces_[edge.piece].score;
      const double path = forward_[edge.begin] + score + backward_[edge.end];
      expected[edge.piece] += count * std::exp(path - all);
    }
    return all;
  }

  // The likeliest pieces of a word, but for `without`; empty when there is no other way.
  std::vector<std::uint32_t> best(std::string_view word, std::uint32_t without = ByteTrie::kNone) {
    forward_.assign(word.size() + 1, kImpossible);
    came_from_.assign(word.size() + 1, {});
    forward_[0] = 0;
    for (std::size_t begin = 0; begin < word.size(); ++begin) {
      if (forward_[begin] <= kImpossible) continue;
      for_each_piece(word, begin, [&](std::size_t end, std::uint32_t piece) {
        const double score = forward_[begin] + pieces_[piece].score;
        if (piece == without || score <= forward_[end]) return;
        forward_[end] = score;
        came_from_[end] = {begin, end, piece};
      });
    }
    std::vector<std::uint32_t> path;
    if (forward_[word.size()] <= kImpossible) return path;
    for (std::size_t end = word.size(); end > 0; end = came_from_[end].begin) {
      path.push_back(came_from_[end].piece);
    }
    std::ranges::reverse(path);
    return path;
  }

 private:
  struct Edge {
    std::size_t begin = 0, end = 0;
    std::uint32_t piece = 0;
  };

  template <class F>
  void for_each_piece(std::string_view word, std::size_t begin, F&& f) const {
    std::uint32_t node = ByteTrie::kRoot;
    for (std::size_t i = begin; i < word.size(); ++i) {
      node = trie_.step(node, static_cast<unsigned char>(word[i]));
      if (node == ByteTrie::kNone) return;
      if (trie_.value(node) != ByteTrie::kNone) f(i + 1, trie_.value(node));
    }
  }

  const std::vector<UnigramPiece>& pieces_;
  ByteTrie trie_;
  std::vector<double> forward_, backward_;
  std::vector<Edge> edges_, came_from_;
};

void set_probabilities(std::vector<UnigramPiece>& pieces, const std::vector<double>& counts) {
  double total = 0;
  for (const double count : counts) total += count;
  const double log_total = std::log(std::max(total, 1.0));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].score = std::log(std::max(counts[i], 1e-3)) - log_total;
  }
}

// A piece is of one kind, but for the metaspace in front: "word" and "." rather than "word.".
enum class PieceKind : std::uint8_t { metaspace, letters, numbers, signs };
PieceKind kind_of(std::string_view character) {
  if (character == kMetaspace) return PieceKind::metaspace;
  const char32_t c = utf8_at(character, 0).value;
  if (is_letter(c) || is_mark(c)) return PieceKind::letters;
  return is_number(c) ? PieceKind::numbers : PieceKind::signs;
}

// Characters, and the substrings of words that cover most of the text.
std::vector<UnigramPiece> seed_pieces(const std::vector<CountedWord>& words,
                                      std::int64_t min_frequency) {
  std::unordered_map<std::string_view, std::int64_t> characters, longer;
  std::vector<std::size_t> starts;
  std::vector<PieceKind> kinds;
  for (const CountedWord& word : words) {
    const std::string_view bytes = word.bytes;
    starts.clear();
    kinds.clear();
    for (std::size_t i = 0; i < bytes.size(); i += utf8_size(bytes[i])) {
      starts.push_back(i);
      kinds.push_back(kind_of(bytes.substr(i, utf8_size(bytes[i]))));
    }
    starts.push_back(bytes.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      characters[bytes.substr(starts[i], starts[i + 1] - starts[i])] += word.count;
      const std::size_t last = std::min(kinds.size(), i + kLongestPiece);
      for (std::size_t j = i + 1; j < last; ++j) {
        const bool begins = j == i + 1 && kinds[i] == PieceKind::metaspace;
        if (kinds[j] != kinds[j - 1] && !begins) break;
        longer[bytes.substr(starts[i], starts[j + 1] - starts[i])] += word.count;
      }
    }
  }
  struct Seed {
    std::string_view text;
    double count, covered;  // covered: bytes of the text
  };
  std::vector<Seed> seeds;
  for (const auto& [text, count] : longer) {
    if (count < min_frequency) continue;
    const auto times = static_cast<double>(count);
    seeds.push_back({text, times, times * static_cast<double>(text.size())});
  }
  // Maps have no order; this one depends on the text alone.
  std::ranges::sort(seeds, [](const Seed& a, const Seed& b) {
    return a.covered != b.covered ? a.covered > b.covered : a.text < b.text;
  });
  if (seeds.size() > kMostSeeds) seeds.resize(kMostSeeds);

  std::vector<UnigramPiece> pieces;
  std::vector<double> counts;
  std::vector<std::string_view> alphabet;
  for (const auto& [text, count] : characters) alphabet.push_back(text);
  std::ranges::sort(alphabet);
  for (const std::string_view text : alphabet) {
    pieces.push_back({std::string(text), 0, true});
    counts.push_back(static_cast<double>(characters[text]));
  }
  for (const Seed& seed : seeds) {
    pieces.push_back({std::string(seed.text), 0, false});
    counts.push_back(seed.count);
  }
  set_probabilities(pieces, counts);
  return pieces;
}

// One step of expectation maximisation; pieces that are hardly ever expected go.
void expect_and_maximize(const std::vector<CountedWord>& words, std::vector<UnigramPiece>& pieces) {
  std::vector<double> expected(pieces.size(), 0);
  {
    Lattice lattice(pieces);
    for (const CountedWord& word : words) {
      lattice.add_expected(word.bytes, static_cast<double>(word.count), expected);
    }
  }
  std::vector<UnigramPiece> kept;
  std::vector<double> counts;
  double total = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (expected[i] < kRareBelow && !pieces[i].is_character) continue;
    counts.push_back(std::max(expected[i], 1e-3));
    total += counts.back();
    kept.push_back(std::move(pieces[i]));
  }
  const double log_total = digamma(total);
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i].score = digamma(counts[i]) - log_total;
  pieces = std::move(kept);
}

// How much less likely the text becomes when a piece goes and the next best way to cut it takes its
// place; infinite for characters.
std::vector<double> losses_of(const std::vector<CountedWord>& words,
                              const std::vector<UnigramPiece>& pieces) {
  Lattice lattice(pieces);
  std::vector<double> used(pieces.size(), 0);
  double total = 0;
  for (const CountedWord& word : words) {
    for (const std::uint32_t piece : lattice.best(word.bytes)) {
      used[piece] += static_cast<double>(word.count);
      total += static_cast<double>(word.count);
    }
  }
  std::vector<double> losses(pieces.size(), 0);
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].is_character) {
      losses[i] = std::numeric_limits<double>::infinity();
      continue;
    }
    if (used[i] == 0) continue;
    const std::vector<std::uint32_t> instead = lattice.best(pieces[i].text, i);
    // What it was used for falls to its parts, whose probabilities grow by that.
    const double before = std::log(used[i]) - std::log(total);
    const double more = used[i] * static_cast<double>(instead.size() - 1);
    double after = 0;
    for (const std::uint32_t part : instead) {
      after += std::log(used[part] + used[i]) - std::log(total + more);
    }
    losses[i] = used[i] * (before - after);
  }
  return losses;
}

// The pieces that are missed most, in the order they had.
void keep_best(std::vector<UnigramPiece>& pieces, const std::vector<double>& worth,
               std::size_t count) {
  std::vector<std::uint32_t> order(pieces.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](auto a, auto b) { return worth[a] > worth[b]; });
  order.resize(std::min(order.size(), count));
  std::ranges::sort(order);
  std::vector<UnigramPiece> kept;
  kept.reserve(order.size());
  for (const std::uint32_t i : order) kept.push_back(std::move(pieces[i]));
  pieces = std::move(kept);
}

}  // namespace

TokenizerFile train_unigram(const std::vector<CountedWord>& words,
                            const TokenizerTraining& training) {
  const auto progress = [&](double done, const char* what) {
    check(!training.on_progress || training.on_progress(0.5 + done / 2, what),
          "train_tokenizer: stopped");
  };
  std::vector<UnigramPiece> pieces = seed_pieces(words, training.min_frequency);
  const std::size_t specials = training.special_tokens.size();
  const auto alphabet =
      static_cast<std::size_t>(std::ranges::count_if(pieces, &UnigramPiece::is_character));
  const auto size = static_cast<std::size_t>(training.size);
  check(size >= specials + alphabet,
        "train_tokenizer: size is {}, but {} characters and {} special tokens need {}",
        training.size, alphabet, specials, specials + alphabet);
  const std::size_t wanted = size - specials;
  // A little more than wanted, so that the last choice is by probability.
  const auto enough = static_cast<std::size_t>(1.1 * static_cast<double>(wanted));
  const double begin = std::log(static_cast<double>(std::max<std::size_t>(pieces.size(), 1)));
  const double end = std::log(static_cast<double>(std::max<std::size_t>(enough, 1)));
  for (;;) {
    for (int i = 0; i < kExpectations; ++i) expect_and_maximize(words, pieces);
    if (pieces.size() <= enough) break;
    const auto fewer = static_cast<std::size_t>(kKept * static_cast<double>(pieces.size()));
    keep_best(pieces, losses_of(words, pieces), std::max({fewer, enough, alphabet}));
    const double now = std::log(static_cast<double>(pieces.size()));
    progress(begin > end ? std::clamp((begin - now) / (begin - end), 0.0, 1.0) : 1.0,
             "taking pieces away");
  }
  std::vector<double> worth;
  for (const UnigramPiece& piece : pieces) {
    worth.push_back(piece.is_character ? std::numeric_limits<double>::infinity() : piece.score);
  }
  keep_best(pieces, worth, wanted);
  std::ranges::stable_sort(pieces, std::ranges::greater{}, &UnigramPiece::score);

  TokenizerFile file = TokenizerFile::from_settings(
      trained_unigram_settings(training.special_tokens), "the trained tokenizer");
  file.vocabulary_is_list = true;
  const auto add = [&](const std::string& token, double score) {
    file.vocabulary.push_back({token, static_cast<TokenId>(file.vocabulary.size()), score});
  };
  for (const std::string& token : training.special_tokens) add(token, 0);
  for (const UnigramPiece& piece : pieces) add(piece.text, piece.score);
  return file;
}

}  // namespace qkv::text

// How close translations are to their references, as sacreBLEU counts it:
//
//   qkv::Bleu b = qkv::bleu(hypotheses, {references});
//   b.score;  // 0 to 100
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace qkv {

// How text becomes words: mteval-v13a.pl, mteval-v14.pl (any script), every character, or white
// space alone.
enum class BleuTokenizer : std::uint8_t { v13a, international, characters, none };
std::string to_string(BleuTokenizer tokenizer);                     // "13a", "intl", "char", "none"
BleuTokenizer bleu_tokenizer_from_string(const std::string& name);  // Error lists the names

struct BleuOptions {
  BleuTokenizer tokenizer = BleuTokenizer::v13a;
  bool lowercase = false;
  // An order without a match counts as half a match, the next as a quarter, and so on. Without it
  // (and tokenizer none) this is what multi-bleu.perl counts: BLEU of text already tokenised.
  bool smooth = true;
};

struct Bleu {
  double score = 0;                    // 0 to 100
  std::array<double, 4> precisions{};  // of 1 to 4 words, 0 to 100
  std::array<std::int64_t, 4> matches{}, totals{};
  double brevity_penalty = 1;
  std::int64_t hypothesis_words = 0, reference_words = 0;
  double ratio() const;   // of the two
  std::string signature;  // "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:qkv-..."
};
// "BLEU = 53.62 78.1/60.4/48.0/37.9 (BP = 0.987 ratio = 0.987 hyp_len = 6410 ref_len = 6494)"
std::string to_string(const Bleu& bleu);

// Corpus BLEU of lines: `references` are one or more lists, each with a line for every hypothesis.
Bleu bleu(const std::vector<std::string>& hypotheses,
          const std::vector<std::vector<std::string>>& references, const BleuOptions& options = {});

// The words a line counts as, as the options say.
std::vector<std::string> bleu_words(const std::string& line, const BleuOptions& options = {});

}  // namespace qkv

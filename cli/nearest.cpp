#include "nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace qkv::cli {
namespace {

constexpr std::size_t kLongestWord = 64;  // longer ones are no misspelt names

// How many letters to insert, remove, replace or swap with their neighbour.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::move(last);
    last = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

std::size_t letters_of(const std::string& word) {
  const std::size_t first = word.find_first_not_of('-');
  return first == std::string::npos ? 0 : word.size() - first;
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  const std::size_t letters = letters_of(word);
  if (letters < 2 || word.size() > kLongestWord) return "";
  std::string best;
  std::size_t least = std::max<std::size_t>(letters / 3, 1) + 1;
  for (const std::string& name : names) {
    const std::size_t apart = name.starts_with(word) ? 1 : distance(word, name);
    if (apart < least) best = name, least = apart;
  }
  return best;
}

std::string advice(const std::string& word, const std::vector<std::string>& names) {
  const std::string meant = nearest(word, names);
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

}  // namespace qkv::cli

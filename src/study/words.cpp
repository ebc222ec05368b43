#include "study/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace qkv::study {
namespace {

constexpr int kColumns = 100;

std::string wrapped(const std::string& label, const std::string& text) {
  constexpr int kIndent = 12;
  std::string result = fmt::format("  {:<{}}", label, kIndent - 2);
  int column = kIndent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    // Bytes that continue a UTF-8 character take no column.
    const auto width = static_cast<int>(std::count_if(
        word.begin(), word.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
    if (column > kIndent && column + 1 + width > kColumns) {
      result += '\n' + std::string(kIndent, ' ');
      column = kIndent;
    }
    if (column > kIndent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += width;
  }
  return result + '\n';
}

const char* word_for(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::holds: return "holds";
    case Finding::Verdict::loose: return "loose";
    case Finding::Verdict::disagrees: return "DISAGREES";
  }
  return "";
}

}  // namespace

std::string digits(double value, int significant) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{}", value);
  // Of the rounded value: 0.99999 has the decimals of 1.000.
  const std::string rounded = fmt::format("{:.{}e}", value, significant - 1);
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  if (exponent < -6 || exponent > 9) return fmt::format("{:.{}e}", value, significant - 1);
  return fmt::format("{:.{}f}", value, std::max(0, significant - 1 - exponent));
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text = "findings\n";
  for (const Finding& finding : findings) text += wrapped(word_for(finding.verdict), finding.text);
  return text;
}

const char* name_of(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::holds: return "holds";
    case Finding::Verdict::loose: return "loose";
    case Finding::Verdict::disagrees: return "disagrees";
  }
  return "";
}

std::string compare(double a, double b) {
  return a >= b ? fmt::format("{:.3g} times larger", a / b)
                : fmt::format("{:.3g} times smaller", b / a);
}

}  // namespace qkv::study

// One line of a metrics.jsonl.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::viewer {

struct RunPoint {
  double step, loss, lr, tokens_per_second, seconds;  // NaN: not told
};
struct RunEvaluation {
  double step, loss, perplexity, accuracy, bleu;
};
struct RunWarning {
  double step;
  std::string text;
};

inline constexpr std::array<const char*, 6> kHealthNames{
    "max_logit", "variance", "entropy", "saturation", "q_grad_norm", "k_grad_norm"};

// The health of the heads at one step: of each statistic a table with a row per name, and in it a
// cell per head from 0 to the last one of that name. NaN: not told.
struct RunHealth {
  double step = 0;
  std::vector<std::string> names;
  std::vector<std::uint32_t> heads;                           // cells of each row
  std::array<std::vector<float>, kHealthNames.size()> cells;  // empty: not told of any head

  std::size_t bytes() const;
};

struct RunLine {
  double step = -1;  // -1: the line is no metrics
  std::optional<RunPoint> point{};
  std::optional<RunEvaluation> evaluation{};
  std::optional<RunWarning> warning{};
  std::optional<RunHealth> health{};
  std::string problem{};  // the first of what could not be read; the rest of the line counts
};

// Never throws but for lack of memory. `where` stands for the line in what it says.
RunLine read_run_line(std::string_view text, const std::string& where);

}  // namespace qkv::viewer

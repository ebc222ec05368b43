// What the text, JSON and HTML of the scaling study share: the list of quantities, and numbers in
// words.
#pragma once

#include <array>
#include <string>

#include "qkv/study.h"
#include "study/words.h"

namespace qkv::study {

enum class Unit : std::uint8_t { plain, percent };

struct Column {
  const char* key;    // in JSON
  const char* title;  // for people
  Quantity ScaleStudyRow::*member;
  Unit unit = Unit::plain;
};

inline constexpr std::array kColumns{
    Column{"score_variance", "variance of a score", &ScaleStudyRow::score_variance},
    Column{"score_magnitude", "typical score (rms)", &ScaleStudyRow::score_magnitude},
    Column{"max_logit", "largest score", &ScaleStudyRow::max_logit},
    Column{"top_weight", "largest weight", &ScaleStudyRow::top_weight},
    Column{"entropy", "entropy (nats)", &ScaleStudyRow::entropy},
    Column{"entropy_relative", "entropy / log n", &ScaleStudyRow::entropy_relative},
    Column{"saturation", "saturated rows", &ScaleStudyRow::saturation, Unit::percent},
    Column{"gradient_scores", "gradient at the scores", &ScaleStudyRow::gradient_scores},
    Column{"gradient_scores_median", "gradient at the scores, median row",
           &ScaleStudyRow::gradient_scores_median},
    Column{"gradient_q", "gradient at Q", &ScaleStudyRow::gradient_q},
    Column{"gradient_k", "gradient at K", &ScaleStudyRow::gradient_k},
};

// With as many decimals as its standard error gives meaning: "16.03 ± 0.02".
std::string with_error(const Measured& value, Unit unit = Unit::plain);
std::string in_unit(double value, Unit unit);

// The row of a head size and scale; null when the study has none.
const ScaleStudyRow* find_row(const std::vector<ScaleStudyRow>& rows, std::int64_t head_size,
                              const std::string& scale_name);
// 512 where it was studied, else the largest.
std::int64_t headline_size(const ScaleStudy& study);
// "n = 256 keys, 256 queries, 32 trials, entries of variance 1, seed 1"
std::string describe(const ScaleStudyOptions& options);

}  // namespace qkv::study

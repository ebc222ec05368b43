// Curves as every study reports them: a table with small curves, JSON, figures, one drawing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "qkv/study.h"

namespace qkv::study {

std::string curves_text(const std::vector<CurveGroup>& groups);  // 100 columns
nlohmann::ordered_json curves_json(const std::vector<CurveGroup>& groups);
std::string curves_html(const std::vector<CurveGroup>& groups);  // legend, figures, table
// A file of its own: the columns with these keys side by side, over a legend.
std::string curves_svg(const std::vector<CurveGroup>& groups, const std::vector<std::string>& keys);

}  // namespace qkv::study

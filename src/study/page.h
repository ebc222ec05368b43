// What the pages of the studies share: one HTML file that needs nothing else.
#pragma once

#include <string>
#include <vector>

#include "qkv/study.h"
#include "study/svg.h"

namespace qkv::study {

// A whole page; `title` is plain text, `body` HTML.
std::string page(const std::string& title, const std::string& body);
// Escaped, with sqrt and indices as people write them; the names in data stay plain.
std::string pretty(std::string text);
std::string findings_html(const std::vector<Finding>& findings);
// What each series is called, in the order of kStyles; `note` (HTML) says what marks and lines are.
std::string legend(const std::vector<std::string>& names, const std::string& note);
std::string figure(const Plot& plot, const std::string& caption);
// An SVG file: the plots side by side below the names of their series, in the order of kStyles.
std::string drawing(const std::vector<std::string>& names, const std::vector<Plot>& plots);
// "AVX2 with 2 threads"
std::string machine_text(const std::string& target, int threads);

}  // namespace qkv::study

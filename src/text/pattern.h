// What Split and Replace look for: a string or a regular expression.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/json.h"
#include "text/regex.h"

namespace qkv::text {

class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}
  static Pattern from(const Config& config);

  const std::string& text() const { return text_; }  // of the regular expression or the string

  // Calls f(begin, end) for each match.
  template <class F>
  void each_match(std::string_view text, F&& f) const {
    if (regex_) {
      Regex::Search search(*regex_, text);
      for (std::size_t begin = 0, end = 0; search.next(begin, end);) f(begin, end);
      return;
    }
    if (text_.empty()) return;
    for (std::size_t at = text.find(text_); at != std::string_view::npos;
         at = text.find(text_, at + text_.size())) {
      f(at, at + text_.size());
    }
  }

 private:
  std::string text_;
  std::shared_ptr<const Regex> regex_;  // none: a string
};

}  // namespace qkv::text

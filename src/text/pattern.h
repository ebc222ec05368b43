// What Split and Replace look for: a string or a regular expression.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "io/json.h"
#include "text/allowance.h"
#include "text/find.h"
#include "text/regex.h"

namespace qkv::text {

class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}
  static Pattern from(const Config& config);

  const std::string& text() const { return text_; }  // of the regular expression or the string

  // Looks through texts, one after the other, within one allowance.
  class Finder {
   public:
    Finder(const Pattern& pattern, Allowance& allowance) : text_(pattern.text_) {
      if (pattern.regex_) search_.emplace(*pattern.regex_, allowance);
    }
    // Calls f(begin, end) for each match.
    template <class F>
    void each_match(std::string_view text, F&& f) {
      if (search_) {
        search_->start(text);
        for (std::size_t begin = 0, end = 0; search_->next(begin, end);) f(begin, end);
        return;
      }
      if (text_.empty()) return;
      for (std::size_t at = find_string(text, text_, 0); at != std::string_view::npos;
           at = find_string(text, text_, at + text_.size())) {
        f(at, at + text_.size());
      }
    }

   private:
    const std::string& text_;
    std::optional<Regex::Search> search_;
  };

 private:
  std::string text_;
  std::shared_ptr<const Regex> regex_;  // none: a string
};

}  // namespace qkv::text

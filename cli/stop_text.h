// Ends a text where one of some stops begins, while it still grows: what could become a stop is
// held back until it is decided.
#pragma once

#include <string>
#include <vector>

namespace qkv::cli {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  std::string push(const std::string& piece);  // what is certain to stand before any stop
  std::string finish();                        // what was held back and became no stop
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace qkv::cli

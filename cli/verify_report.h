// What a verification found: one line per compared tensor or token sequence.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::cli {

struct Comparison {
  std::string group;                  // "logits", "hidden states", "gradients", ...
  std::string name;                   // the key in expected.safetensors
  double absolute = 0, relative = 0;  // difference, and that over the magnitude (Tolerance)
  double allowed = 0;                 // of the relative one
  bool passed = false;
  std::string note;  // why it failed, or what was left out
};

// A tensor agrees when |got - expected| <= relative * max|expected| + absolute everywhere that
// counts; or, `by_length`, when that holds of the lengths of the three as vectors, where single
// elements say little: a relu that rounding turns off changes one gradient for good.
struct Tolerance {
  double relative = 1e-5, absolute = 0;
  bool by_length = false;
};

class VerifyReport {
 public:
  // `counts` is 1 where a row (the last axis) matters; empty = everywhere.
  void compare(const std::string& group, const std::string& name, const Tensor& got,
               const Tensor& expected, const Tolerance& tolerance,
               const std::vector<char>& counts = {});
  // Tokens: all must agree, or with `at_least` > 0 the first so many.
  void compare_tokens(const std::string& name, const std::vector<std::int64_t>& got,
                      const std::vector<std::int64_t>& expected, std::size_t at_least = 0);
  void fail(const std::string& group, const std::string& name, const std::string& why);

  const std::vector<Comparison>& all() const { return all_; }
  std::size_t passed() const;
  std::size_t failed() const { return all_.size() - passed(); }

  // A table with a line per group (or per comparison), failures always in full.
  std::string text(bool verbose) const;
  nlohmann::ordered_json json() const;

 private:
  std::vector<Comparison> all_;
};

}  // namespace qkv::cli

// The three scales that the studies compare.
#pragma once

#include <array>
#include <cmath>

namespace qkv::study {

struct Scale {
  const char* name;
  double (*of)(double head_size);
};
inline constexpr std::array kScales{
    Scale{"none", [](double) { return 1.0; }},
    Scale{"1/sqrt(d_k)", [](double d) { return 1 / std::sqrt(d); }},
    Scale{"1/d_k", [](double d) { return 1 / d; }},
};

}  // namespace qkv::study

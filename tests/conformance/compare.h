// Is a tensor close enough to the one a case expects?
#pragma once

#include <string>

#include "qkv/tensor.h"

namespace conformance {

// Empty when it is; else what differs, with the largest error, in one line.
std::string difference(const qkv::Tensor& got, const qkv::Tensor& expected);

}  // namespace conformance

// Everything in expected.safetensors of a folder, compared with what the model there computes.
#pragma once

#include <optional>
#include <string>

#include "qkv/dtype.h"
#include "verify_report.h"

namespace qkv::cli {

VerifyReport verify_model(const std::string& folder, std::optional<DType> dtype, Device device);

}  // namespace qkv::cli

// From the tensors of a checkpoint to the parameters of a model.
#pragma once

#include <string>

#include "qkv/checkpoint.h"
#include "qkv/models/model.h"

namespace qkv {

// Fetches every parameter by name; Error with everything that is missing, unexpected or wrong.
// `folder` is for the message.
void load_parameters(Model& model, const Checkpoint& checkpoint, const std::string& folder,
                     const LoadOptions& options);

}  // namespace qkv

#pragma once

#include "qkv/models/model.h"

namespace qkv::cli {

// Moves what a model has to a device. Tied weights are one tensor before and after.
void move_model(Model& model, Device device);

}  // namespace qkv::cli

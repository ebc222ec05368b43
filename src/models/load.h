// From a config to a model, and parameters from a checkpoint.
#pragma once

#include <memory>
#include <string>

#include "models/family.h"

namespace qkv {

// Looks the family up and builds it, parameters still undefined.
std::unique_ptr<Model> make_family(ModelSource source);

// What only the loader sets.
struct ModelAccess {
  static void set_config(Model& model, std::string text) { model.config_text_ = std::move(text); }
};

}  // namespace qkv

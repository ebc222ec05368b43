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
  static void set_generation(Model& model, std::string text) {
    model.generation_text_ = std::move(text);
  }
  static const std::string& generation(const Model& model) { return model.generation_text_; }
};

}  // namespace qkv

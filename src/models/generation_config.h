// Reading what a checkpoint says about generation.
#pragma once

#include <optional>

#include "io/json.h"
#include "qkv/models/model.h"

namespace qkv {

// Of generation_config.json, else of config.json; Error that names file, key and allowed values.
// `info` has what config.json says about the vocabulary and special tokens.
GenerationConfig read_generation_config(const std::optional<Config>& file, const Config& config,
                                        const ModelInfo& info);

}  // namespace qkv

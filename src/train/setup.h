// What a run trains: the model of its config, new or from a checkpoint, where it will run.
#pragma once

#include <memory>
#include <string>

#include "qkv/models/model.h"
#include "qkv/tokenizer.h"
#include "qkv/train.h"

namespace qkv {

// Where the tokenizer of a run is.
std::string tokenizer_path(const TrainConfig& config);

std::unique_ptr<Model> make_trained_model(const TrainConfig& config, const Tokenizer& tokenizer);

// Biases and gains are not decayed.
Optimizer make_optimizer(const TrainConfig& config, Model& model);

}  // namespace qkv

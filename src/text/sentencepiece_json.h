// A sentencepiece model written as a tokenizer.json.
#pragma once

#include <string>

#include "text/sentencepiece_model.h"

namespace qkv::text {

// Throws Error that names what a tokenizer.json cannot say exactly.
std::string sentencepiece_to_json(const SentencePieceModel& model);

}  // namespace qkv::text

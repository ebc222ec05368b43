#include "text/sentencepiece_json.h"

#include "core/check.h"

namespace qkv::text {

std::string sentencepiece_to_json(const SentencePieceModel& model) {
  fail("{}: a sentencepiece model cannot be written as tokenizer.json yet", model.name);
}

}  // namespace qkv::text

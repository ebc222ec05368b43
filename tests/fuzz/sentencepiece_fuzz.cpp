// Any bytes as a sentencepiece model: refused with an Error, or a tokenizer that takes any text.
// The bytes themselves are the text.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "qkv/error.h"
#include "qkv/tokenizer.h"
#include "text/sentencepiece_pipeline.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const qkv::Tokenizer tokenizer(std::make_shared<qkv::text::SentencePiecePipeline>(
        qkv::text::SentencePieceModel::parse(bytes, "tokenizer.model")));
    const auto ids = tokenizer.encode(bytes);
    const qkv::Encoding encoding = tokenizer.encode_spans(bytes);
    if (encoding.ids != ids || encoding.spans.size() != ids.size()) std::abort();
    for (const qkv::TokenSpan& span : encoding.spans) {
      if (span.begin > span.end || span.end > size) std::abort();
    }
    tokenizer.decode(ids);
  } catch (const qkv::Error&) {
  }
  return 0;
}

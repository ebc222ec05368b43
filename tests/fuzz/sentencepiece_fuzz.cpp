// Any bytes as a sentencepiece model: refused with an Error, or a tokenizer that takes any text.
// The bytes themselves are the text, once and many times over.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
    std::string often(bytes);
    while (!often.empty() && often.size() < 8192) often += often;
    tokenizer.encode(often);
    std::vector<std::int64_t> all;
    for (std::int64_t id = 0; id < tokenizer.size(); ++id) all.push_back(id);
    tokenizer.decode(all, {.skip_special = false});
    qkv::DecodeStream stream(tokenizer);
    for (const std::int64_t id : all) stream.push(id);
    stream.finish();
  } catch (const qkv::Error&) {
  }
  return 0;
}

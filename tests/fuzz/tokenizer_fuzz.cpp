// Any text as a tokenizer.json: refused with an Error, or a tokenizer that takes any text. What
// stands behind the first NUL is encoded and decoded with it.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "qkv/error.h"
#include "qkv/tokenizer.h"
#include "text/json_pipeline.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view file = bytes.substr(0, bytes.find('\0'));
  const std::string_view text = bytes.substr(std::min(file.size() + 1, bytes.size()));
  try {
    const qkv::Tokenizer tokenizer(std::make_shared<qkv::text::JsonPipeline>(
        qkv::text::TokenizerFile::parse(file, "tokenizer.json")));
    const auto ids = tokenizer.encode(text);
    const qkv::Encoding encoding = tokenizer.encode_spans(text);
    if (encoding.ids != ids || encoding.spans.size() != ids.size()) std::abort();
    for (const qkv::TokenSpan& span : encoding.spans) {
      if (span.begin > span.end || span.end > text.size()) std::abort();
    }
    tokenizer.decode(ids);
    qkv::DecodeStream stream(tokenizer);
    for (const std::int64_t id : ids) stream.push(id);
    stream.finish();
  } catch (const qkv::Error&) {
  }
  return 0;
}

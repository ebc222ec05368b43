// Any text as a tokenizer.json: refused with an Error, or a tokenizer that takes any text and gives
// text for any ids. What stands behind the first NUL is encoded and decoded with it, once and many
// times over: what takes more than its share of work is slow then.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/error.h"
#include "qkv/tokenizer.h"
#include "text/json_pipeline.h"

namespace {

using qkv::Tokenizer;

template <class F>
void allow_error(F&& f) {
  try {
    f();
  } catch (const qkv::Error&) {
  }
}

void encode_and_decode(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  const qkv::Encoding encoding = tokenizer.encode_spans(text);
  if (encoding.ids != ids || encoding.spans.size() != ids.size()) std::abort();
  for (const qkv::TokenSpan& span : encoding.spans) {
    if (span.begin > span.end || span.end > text.size()) std::abort();
  }
  const std::string decoded = tokenizer.decode(ids);
  if (tokenizer.decode(ids) != decoded) std::abort();
}

void stream(const Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  qkv::DecodeStream stream(tokenizer);
  for (const std::int64_t id : ids) stream.push(id);
  stream.finish();
}

// The bytes of the text as ids.
std::vector<std::int64_t> ids_of(std::string_view text, std::int64_t size) {
  std::vector<std::int64_t> ids;
  for (const char byte : text) {
    if (static_cast<unsigned char>(byte) < size) ids.push_back(static_cast<unsigned char>(byte));
  }
  return ids;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kLongText = 8192;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view file = bytes.substr(0, bytes.find('\0'));
  const std::string_view text = bytes.substr(std::min(file.size() + 1, bytes.size()));
  allow_error([&] {
    const Tokenizer tokenizer(std::make_shared<qkv::text::JsonPipeline>(
        qkv::text::TokenizerFile::parse(file, "tokenizer.json")));
    allow_error([&] { encode_and_decode(tokenizer, text); });
    allow_error([&] { tokenizer.encode_pair(text, text); });
    const auto ids = ids_of(text, tokenizer.size());
    allow_error([&] { tokenizer.decode(ids, {.skip_special = false}); });
    allow_error([&] { stream(tokenizer, ids); });
    std::string often(text);
    while (!often.empty() && often.size() < kLongText) often += often;
    allow_error([&] { tokenizer.encode(often); });
    allow_error([&] { tokenizer.decode(ids_of(often, tokenizer.size())); });
  });
  return 0;
}

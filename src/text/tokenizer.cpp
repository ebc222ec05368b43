#include "qkv/tokenizer.h"

#include <algorithm>

#include "core/check.h"
#include "io/file.h"
#include "text/load.h"
#include "text/pipeline.h"

namespace qkv {
namespace {

// Cuts the longer text until both together have room, as evenly as that goes.
void truncate(Encoding& first, Encoding* second, std::size_t room) {
  const auto cut = [](Encoding& encoding, std::size_t size) {
    if (encoding.ids.size() <= size) return;
    encoding.ids.resize(size);
    if (encoding.spans.size() > size) encoding.spans.resize(size);
  };
  if (second == nullptr) return cut(first, room);
  std::size_t a = first.ids.size(), b = second->ids.size();
  if (a + b <= room) return;
  const bool swapped = a > b;
  if (swapped) std::swap(a, b);
  b = a > room ? a : std::max(a, room - a);
  if (a + b > room) {
    a = room / 2;
    b = a + room % 2;
  }
  if (swapped) std::swap(a, b);
  cut(first, a);
  cut(*second, b);
}

Encoding encode_texts(const Tokenizer::Pipeline& pipeline, std::string_view first,
                      const std::string_view* second, bool spans, const EncodeOptions& options) {
  check(options.max_tokens >= 0, "encode: max_tokens must not be negative, got {}",
        options.max_tokens);
  Encoding a;
  pipeline.encode(first, spans, a);
  std::optional<Encoding> b;
  if (second != nullptr) pipeline.encode(*second, spans, b.emplace());
  if (options.max_tokens > 0) {
    const std::size_t added =
        options.special_tokens ? pipeline.special_tokens(second != nullptr) : 0;
    const auto most = static_cast<std::size_t>(options.max_tokens);
    check(most >= added, "encode: max_tokens is {}, but the template alone has {}",
          options.max_tokens, added);
    truncate(a, b ? &*b : nullptr, most - added);
  }
  return pipeline.surround(std::move(a), std::move(b), options.special_tokens);
}

std::optional<std::int64_t> first_of(const Tokenizer::Pipeline& pipeline,
                                     std::initializer_list<std::string_view> tokens) {
  for (const std::string_view token : tokens) {
    if (const auto id = pipeline.id(token)) return id;
  }
  return {};
}

void check_id(const Tokenizer::Pipeline& pipeline, std::int64_t id, const char* what) {
  check(id >= 0 && id < pipeline.size(), "{}: there is no id {}, ids are 0 to {}", what, id,
        pipeline.size() - 1);
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& path) { return Tokenizer(text::load_pipeline(path)); }

std::vector<std::int64_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  return encode_texts(*pipeline_, text, nullptr, false, options).ids;
}

Encoding Tokenizer::encode_spans(std::string_view text, const EncodeOptions& options) const {
  return encode_texts(*pipeline_, text, nullptr, true, options);
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                const EncodeOptions& options) const {
  return encode_texts(*pipeline_, first, &second, true, options);
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids,
                              const DecodeOptions& options) const {
  for (const std::int64_t id : ids) {
    check(id >= 0 && (options.skip_out_of_range || id < pipeline_->size()),
          "decode: there is no id {}, ids are 0 to {}", id, pipeline_->size() - 1);
  }
  return pipeline_->decode(ids, options);
}

std::int64_t Tokenizer::size() const { return pipeline_->size(); }

std::optional<std::int64_t> Tokenizer::id(std::string_view token) const {
  return pipeline_->id(token);
}

std::string Tokenizer::token(std::int64_t id) const {
  check_id(*pipeline_, id, "token");
  return pipeline_->token(id);
}

bool Tokenizer::is_special(std::int64_t id) const {
  check_id(*pipeline_, id, "is_special");
  return pipeline_->is_special(id);
}

std::optional<std::int64_t> Tokenizer::mask_id() const {
  return first_of(*pipeline_, {"[MASK]", "<mask>"});
}
std::optional<std::int64_t> Tokenizer::pad_id() const {
  return first_of(*pipeline_, {"[PAD]", "<pad>"});
}
std::optional<std::int64_t> Tokenizer::unknown_id() const { return pipeline_->unknown_id(); }

std::string Tokenizer::kind() const {
  return fmt::format("{}, {} tokens", pipeline_->kind(), pipeline_->size());
}

void Tokenizer::save(const std::string& path) const {
  write_file_atomically(path, pipeline_->to_json());
}

}  // namespace qkv

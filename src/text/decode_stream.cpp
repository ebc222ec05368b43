#include "core/check.h"
#include "qkv/tokenizer.h"
#include "text/pipeline.h"
#include "text/utf8.h"

namespace qkv {
namespace {

// How many ids are kept so that the text of the next one is what it would be after all of them:
// only the first token of a text reads differently, and bytes of a character are at most four.
constexpr std::size_t kContext = 8;
constexpr std::size_t kMostContext = 4 * kContext;

// Without the U+FFFD at the end, which may be the beginning of a character: up to three bytes.
std::size_t certain_size(std::string_view text) {
  for (int bytes = 0; bytes < 3 && text.ends_with(text::kReplacement); ++bytes) {
    text.remove_suffix(text::kReplacement.size());
  }
  return text.size();
}

}  // namespace

DecodeStream::DecodeStream(Tokenizer tokenizer, const DecodeOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options) {
  options_.skip_out_of_range = true;
}

// Lets go of what the next tokens do not depend on: each push decodes all that is kept. `text` is
// what that reads as.
void DecodeStream::shorten(std::string_view text) {
  const auto keep = [&](std::vector<std::int64_t> ids) {
    const std::string kept = tokenizer_.decode(ids, options_);
    const std::size_t held_back = text.size() - told_;
    // Where nothing was said so far, the next token is still the first of the text.
    if (kept.empty() != text.empty()) return false;
    if (held_back > 0 && (!text.ends_with(kept) || kept.size() < held_back)) return false;
    told_ = kept.size() - held_back;
    ids_ = std::move(ids);
    return true;
  };
  std::vector<std::int64_t> last(ids_.end() - kContext, ids_.end());
  if (keep(last)) return;
  last.insert(last.begin(), ids_.begin(), ids_.begin() + kContext);  // the last say nothing
  keep(std::move(last));
}

std::string DecodeStream::push(std::int64_t id) {
  check(id >= 0, "decode: there is no id {}, ids are 0 to {}", id, tokenizer_.size() - 1);
  ids_.push_back(id);
  if (tokenizer_.pipeline().is_open_ended(id, options_)) return {};
  const std::string text = tokenizer_.decode(ids_, options_);
  const std::size_t certain = certain_size(text);
  std::string result;
  if (certain > told_) {
    result = text.substr(told_, certain - told_);
    told_ = certain;
  }
  if (ids_.size() > kMostContext && told_ <= text.size()) shorten(text);
  return result;
}

std::string DecodeStream::finish() {
  const std::string text = tokenizer_.decode(ids_, options_);
  std::string result = text.size() > told_ ? text.substr(told_) : "";
  ids_.clear();
  told_ = 0;
  return result;
}

}  // namespace qkv

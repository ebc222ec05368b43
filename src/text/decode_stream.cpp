#include "qkv/tokenizer.h"
#include "text/pipeline.h"
#include "text/utf8.h"

namespace qkv {
namespace {

// How many ids are kept so that the text of the next one is what it would be after all of them:
// only the first token of a text reads differently, and bytes of a character are at most four.
constexpr std::size_t kContext = 8;
constexpr std::size_t kMostContext = 4 * kContext;

// Without the U+FFFD at the end, which may be the beginning of a character.
std::size_t certain_size(std::string_view text) {
  while (text.ends_with(text::kReplacement)) text.remove_suffix(text::kReplacement.size());
  return text.size();
}

}  // namespace

DecodeStream::DecodeStream(Tokenizer tokenizer, const DecodeOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options) {}

std::string DecodeStream::push(std::int64_t id) {
  ids_.push_back(id);
  if (tokenizer_.pipeline().is_open_ended(id, options_)) return {};
  const std::string text = tokenizer_.decode(ids_, options_);
  const std::size_t certain = certain_size(text);
  std::string result;
  if (certain > told_) {
    result = text.substr(told_, certain - told_);
    told_ = certain;
  }
  if (ids_.size() > kMostContext && told_ == text.size()) {
    const std::span<const std::int64_t> last(ids_.end() - kContext, ids_.end());
    const std::string kept = tokenizer_.decode(last, options_);
    if (!kept.empty()) {
      told_ = kept.size();
      ids_.erase(ids_.begin(), ids_.end() - kContext);
    }
  }
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

#include "qkv/models/perplexity.h"

#include <algorithm>

#include "core/check.h"
#include "qkv/autograd.h"

namespace qkv {

Perplexity perplexity(const Model& model, const std::vector<std::int64_t>& ids,
                      const PerplexityOptions& options) {
  const ModelInfo& info = model.info();
  check(info.kind == ModelKind::decoder, "perplexity: a {} is not a decoder", info.family);
  check(options.window >= 0, "perplexity: window must not be negative, got {}", options.window);
  const TapePause pause;
  const std::int64_t limit = info.max_positions > 0 ? info.max_positions : 1024;
  const std::int64_t window = options.window > 0 ? std::min(options.window, limit) : limit;
  const std::int64_t own = info.bos_id >= 0 ? 1 : 0;  // what each window has beside the text
  check(window > 1, "perplexity: a window of {} token predicts nothing", window);
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::int64_t step = window - own, windows = (count + step - 1) / step;

  Perplexity result;
  for (std::int64_t w = 0; w < windows; ++w) {
    std::vector<std::int64_t> part;
    if (own > 0) part.push_back(info.bos_id);
    part.insert(part.end(), ids.begin() + w * step, ids.begin() + std::min(count, (w + 1) * step));
    const auto length = static_cast<std::int64_t>(part.size());
    if (length < 2) break;  // one last token, and nothing before it
    const Tensor input = Tensor::from(part, {1, length});
    nn::KvCache cache(length, options.kv_dtype);
    const Tensor logits =
        model({.ids = input}, {.cache = options.kv_dtype ? &cache : nullptr}).logits;
    const Tensor loss = cross_entropy(slice(logits, 1, 0, length - 1), slice(input, 1, 1, length));
    result.loss += double{loss.to_vector<float>()[0]} * static_cast<double>(length - 1);
    result.tokens += length - 1;
    if (options.progress) options.progress(w + 1, windows);
  }
  check(result.tokens > 0, "perplexity: {} tokens are too few", ids.size());
  result.loss /= static_cast<double>(result.tokens);
  return result;
}

}  // namespace qkv

#include "qkv/translate.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "models/source_tokens.h"
#include "qkv/generate.h"

namespace qkv {
namespace {

constexpr std::int64_t kTranslationBeams = 4;

}  // namespace

std::vector<std::string> translate(const Model& model, const Tokenizer& tokenizer,
                                   const std::vector<std::string>& texts,
                                   const TranslateOptions& options) {
  check(model.info().kind == ModelKind::encoder_decoder,
        "translate: a {} is no encoder-decoder; use a Marian, BART or T5 model",
        model.info().family);
  std::vector<std::string> outputs(texts.size());
  std::vector<Ids> sources(texts.size());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].find_first_not_of(" \t\r\n") == std::string::npos) continue;
    sources[i] = source_tokens(tokenizer, model.info(), texts[i], options.prefix);
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return sources[a].size() < sources[b].size();
  });
  for (std::size_t begin = 0; begin < order.size();) {
    std::vector<Ids> batch;
    std::size_t end = begin;
    for (; end < order.size(); ++end) {
      const Ids& next = sources[order[end]];
      const std::size_t rows = batch.size() + 1;
      if (!batch.empty() && static_cast<std::int64_t>(rows * next.size()) > options.batch_tokens) {
        break;
      }
      batch.push_back(next);
    }
    const auto longest = static_cast<std::int64_t>(batch.back().size());
    GenerateOptions how;
    how.temperature = 0;
    how.beams = options.beams ? *options.beams
                              : model.info().generation.num_beams.value_or(kTranslationBeams);
    how.length_penalty = options.length_penalty;
    how.max_new_tokens = options.max_new_tokens > 0 ? options.max_new_tokens : 2 * longest + 16;
    bool is_ended = false;
    if (options.on_step) {
      how.on_step = [&] {
        is_ended = !options.on_step();
        return !is_ended;
      };
    }
    const std::vector<Ids> tokens = generate(model, batch, how);
    if (is_ended) break;
    for (std::size_t i = begin; i < end; ++i)
      outputs[order[i]] = tokenizer.decode(tokens[i - begin], {.skip_out_of_range = true});
    begin = end;
    if (options.on_batch && !options.on_batch(begin, order.size())) break;
  }
  return outputs;
}

}  // namespace qkv

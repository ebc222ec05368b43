#include "text_batches.h"
#include "output.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "progress.h"
#include "text_model.h"

namespace qkv::cli {
namespace {

void check_vocabulary(const Encoding& encoding, std::int64_t vocabulary) {
  for (const std::int64_t id : encoding.ids) {
    check(id < vocabulary,
          "the tokenizer gives id {}, but the model knows only {}: do they belong together?", id,
          vocabulary);
  }
}

// At most `most` tokens, with what belongs around the text; 0 = all.
Encoding encode(const Model& model, const Tokenizer& tokenizer, const std::string& text,
                std::int64_t most) {
  std::vector<std::int64_t> around;
  frame(tokenizer, model.info(), around);
  const auto room = most == 0 ? 0 : most - static_cast<std::int64_t>(around.size());
  Encoding encoding = tokenizer.encode_spans(text, {.max_tokens = room});
  frame(tokenizer, model.info(), encoding.ids);
  return encoding;
}

std::vector<Encoding> encode_all(const Model& model, const Tokenizer& tokenizer,
                                 const std::vector<std::string>& texts, bool may_cut) {
  const std::int64_t limit = model.info().max_positions;
  std::vector<Encoding> encodings;
  std::size_t cut = 0, first_cut = 0, tokens_of_first = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    encodings.push_back(encode(model, tokenizer, texts[i], 0));
    Encoding& encoding = encodings.back();
    const std::size_t count = encoding.ids.size();
    check(count > 0, "text {} is empty, and the tokenizer adds nothing to it", i + 1);
    check_vocabulary(encoding, model.info().vocabulary);
    if (limit == 0 || static_cast<std::int64_t>(count) <= limit) continue;
    check(may_cut, "text {} has {} tokens, more than the {} positions of the model; shorten it",
          i + 1, count, limit);
    encoding = encode(model, tokenizer, texts[i], limit);
    if (cut++ == 0) first_cut = i + 1, tokens_of_first = count;
  }
  if (cut > 0) {
    print_err(
        "qkv: warning: {} of {} texts cut to the {} positions of the model (text {} has {} "
        "tokens)\n",
        cut, texts.size(), limit, first_cut, tokens_of_first);
  }
  return encodings;
}

// Rows padded on the right to the longest.
ModelInput padded(const std::vector<const Encoding*>& rows, const ModelInfo& info) {
  std::size_t longest = 0;
  for (const Encoding* row : rows) longest = std::max(longest, row->ids.size());
  const std::size_t total = rows.size() * longest;
  std::vector<std::int64_t> ids(total, std::max<std::int64_t>(info.pad_id, 0)), types(total, 0);
  std::vector<std::uint8_t> mask(total, 0);
  for (std::size_t b = 0; b < rows.size(); ++b) {
    const auto at = static_cast<std::ptrdiff_t>(b * longest);
    std::copy(rows[b]->ids.begin(), rows[b]->ids.end(), ids.begin() + at);
    std::copy(rows[b]->type_ids.begin(), rows[b]->type_ids.end(), types.begin() + at);
    std::fill_n(mask.begin() + at, rows[b]->ids.size(), std::uint8_t{1});
  }
  const Shape shape{static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(longest)};
  ModelInput input{.ids = Tensor::from(ids, shape), .mask = Tensor::from(mask, shape)};
  if (info.family == "bert") input.token_types = Tensor::from(types, shape);
  return input;
}

// The encoder alone of a model that has a decoder too.
ModelOutput run(const Model& model, const ModelInput& input) {
  ModelOutput output = model(input);
  if (output.memory.defined()) output.last_hidden = output.memory;
  return output;
}

}  // namespace

void run_texts(const Model& model, const Tokenizer& tokenizer,
               const std::vector<std::string>& texts, const TextBatchOptions& options,
               const std::function<void(const TextBatch&)>& each) {
  const std::vector<Encoding> encodings = encode_all(model, tokenizer, texts, options.may_cut);
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  // Longest first: what memory it takes is known at once, and the time left is not underestimated.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return encodings[a].ids.size() > encodings[b].ids.size();
  });
  Progress progress(options.doing);
  for (std::size_t at = 0; at < order.size(); at += options.batch) {
    TextBatch batch;
    for (std::size_t i = at; i < std::min(at + options.batch, order.size()); ++i) {
      batch.texts.push_back(order[i]);
      batch.tokens.push_back(&encodings[order[i]]);
    }
    batch.input = padded(batch.tokens, model.info());
    batch.output = run(model, batch.input);
    each(batch);
    progress.update(static_cast<int>(at + batch.texts.size()), static_cast<int>(texts.size()));
  }
}

}  // namespace qkv::cli

#include "models/padding.h"

#include <algorithm>

#include "core/check.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

std::vector<std::uint8_t> visible_bytes(const char* model, const Tensor& mask, const Shape& shape) {
  check(mask.shape() == shape, "{}: mask must have the shape of ids {}, got {}", model, shape,
        mask.shape());
  const Tensor bytes = to(mask, DType::boolean);
  std::vector<std::uint8_t> visible;
  for (const bool value : bytes.to_vector<bool>()) visible.push_back(value ? 1 : 0);
  return visible;
}

Tensor boolean(const std::vector<std::uint8_t>& values, const Shape& shape) {
  Tensor t = Tensor::empty(shape, {DType::boolean});
  std::copy(values.begin(), values.end(), reinterpret_cast<std::uint8_t*>(t.raw()));
  return t;
}

struct Padding {
  bool none = true;  // every position is a token
  bool only_on_right = true;
  std::vector<std::int32_t> lengths;
};

Padding look_at(const std::vector<std::uint8_t>& visible, std::int64_t batch, std::int64_t length) {
  Padding padding;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto* row = visible.data() + b * length;
    const auto tokens = static_cast<std::int32_t>(std::count(row, row + length, 1));
    padding.lengths.push_back(tokens);
    padding.none &= tokens == length;
    padding.only_on_right &= std::find(row, row + length, 0) == row + tokens;
  }
  return padding;
}

}  // namespace

void check_ids(const char* model, const Tensor& ids) {
  check(
      ids.defined() && ids.rank() == 2 && (ids.dtype() == DType::i64 || ids.dtype() == DType::i32),
      "{}: ids must be i32 or i64 [B, S], got {} {}", model,
      ids.defined() ? to_string(ids.dtype()) : "nothing", ids.shape());
  check(ids.numel() > 0, "{}: ids {} hold no token", model, ids.shape());
}

void check_length(const char* model, std::int64_t length, std::int64_t max_positions) {
  check(max_positions == 0 || length <= max_positions,
        "{}: {} tokens are more than the {} positions of the model; truncate the input", model,
        length, max_positions);
}

Mask padding_mask(const char* model, const Tensor& mask, const Tensor& ids) {
  if (!mask.defined()) return {};
  const std::int64_t batch = ids.size(0), length = ids.size(1);
  const std::vector<std::uint8_t> visible = visible_bytes(model, mask, ids.shape());
  const Padding padding = look_at(visible, batch, length);
  if (padding.none) return {};
  if (padding.only_on_right) {
    // Query i stands at key i, however many keys are padding.
    return Mask::lengths(Tensor::from(padding.lengths, {batch})) & Mask::at_offset(0);
  }
  return Mask::allowed(boolean(visible, {batch, 1, 1, length}));
}

Mask encoder_padding(const char* model, const ModelInput& input) {
  if (input.ids.defined()) {
    check_ids(model, input.ids);
    return padding_mask(model, input.mask, input.ids);
  }
  check(input.memory.defined(), "{}: ids or memory are needed", model);
  if (!input.mask.defined()) return {};
  check(input.mask.rank() == 2 && input.mask.size(0) == input.memory.size(0) &&
            input.mask.size(1) == input.memory.size(1),
        "{}: mask {} does not fit memory {}", model, input.mask.shape(), input.memory.shape());
  return padding_mask(model, input.mask, input.mask);
}

DecoderPositions decoder_positions(const char* model, const Tensor& ids, const Tensor& mask,
                                   nn::KvCache* cache) {
  const std::int64_t batch = ids.size(0), count = ids.size(1);
  const std::int64_t past = cache != nullptr ? cache->length() : 0;
  if (cache != nullptr && cache->place) {
    check(!mask.defined() && !cache->visible.defined() && count == 1,
          "{}: a step at a place is one token for each sequence, without padding, got ids {}",
          model, ids.shape());
    return {.mask = {}, .positions = cache->place->position};
  }
  std::vector<std::uint8_t> fresh(static_cast<std::size_t>(batch * count), 1);
  if (mask.defined()) fresh = visible_bytes(model, mask, ids.shape());
  const bool had_padding = cache != nullptr && cache->visible.defined();
  const Padding padding = look_at(fresh, batch, count);

  DecoderPositions result;
  const bool right_only = padding.only_on_right && cache == nullptr;
  if (!had_padding && (padding.none || right_only)) {
    std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) positions[i] = past + i;
    result.positions = Tensor::from(positions, {count});
    return result;
  }
  // All positions so far, old and new.
  const std::int64_t total = past + count;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(batch * total), 1);
  std::vector<std::uint8_t> old;
  if (had_padding) {
    check(cache->visible.size(0) == batch && cache->visible.size(1) == past,
          "{}: the cache holds {} sequences of {}, got ids {}", model, cache->visible.size(0),
          cache->visible.size(1), ids.shape());
    old = visible_bytes(model, cache->visible, cache->visible.shape());
  }
  std::vector<std::int64_t> positions(static_cast<std::size_t>(batch * count));
  for (std::int64_t b = 0; b < batch; ++b) {
    auto* row = all.data() + b * total;
    if (had_padding) std::copy_n(old.data() + b * past, past, row);
    std::copy_n(fresh.data() + b * count, count, row + past);
    std::int64_t seen = std::count(row, row + past, 1);
    for (std::int64_t i = 0; i < count; ++i) {
      seen += row[past + i];
      positions[b * count + i] = std::max<std::int64_t>(seen - 1, 0);
    }
  }
  result.positions = Tensor::from(positions, {batch, count});
  const Tensor visible = boolean(all, {batch, total});
  if (cache != nullptr) cache->visible = visible;
  result.mask = Mask::allowed(reshape(visible, {batch, 1, 1, total}));
  return result;
}

}  // namespace qkv

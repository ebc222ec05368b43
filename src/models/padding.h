// What padding means to attention and to positions.
#pragma once

#include "qkv/attention.h"
#include "qkv/models/model.h"
#include "qkv/nn.h"

namespace qkv {

// Hides padded keys from every query. mask [B, S] with 0 = padding, or undefined.
Mask padding_mask(const char* model, const Tensor& mask, const Tensor& ids);

// What the decoder may see of an encoder-decoder's encoder: from ids, or from memory alone.
Mask encoder_padding(const char* model, const ModelInput& input);

// A decoder's own mask and positions for the ids that follow `cache`. Padding on the right needs no
// mask: a causal query never looks there. Padding on the left does, and positions count from the
// first token.
struct DecoderPositions {
  Mask mask;
  Tensor positions;  // i64 [S] or [B, S]; on the device where the cache has a place
};
DecoderPositions decoder_positions(const char* model, const Tensor& ids, const Tensor& mask,
                                   nn::KvCache* cache);

void check_ids(const char* model, const Tensor& ids);
void check_length(const char* model, std::int64_t length, std::int64_t max_positions);

}  // namespace qkv

// What `qkv bench attention` was asked to time.
#pragma once

#include <cstdint>
#include <string>

#include "qkv/attention.h"

namespace qkv::cli {

struct BenchCase {
  std::int64_t batch = 1, heads = 12, key_heads = 12, queries = 512, keys = 512, head_size = 64;
  std::int64_t value_size = 64;
  DType dtype = DType::f32;
  Mask mask{};
  bool backward = false;
  Statistics statistics = Statistics::none;
  bool tf32 = false;
  // What is done to single pairs: "none", or a kind of bias; the boolean mask hides an eighth.
  std::string bias = "none";
  float softcap = 0, dropout = 0;
  bool sinks = false, masks_pairs = false;

  std::int64_t group() const { return heads / key_heads; }
  // Key position of query i: the last query stands at the last key.
  std::int64_t position(std::int64_t i) const { return i + keys - queries; }
  // The keys [first, last) that query i sees.
  std::int64_t first_key(std::int64_t i) const;
  std::int64_t last_key(std::int64_t i) const;

  // Multiply-adds count as two. Two products of Sq x Sk x D (and Dv); causal with Sq = Sk counts
  // half, as is the custom; any other mask counts the pairs that are visible. Backward is 2.5
  // times forward: five products instead of two.
  double flops() const;
  // The bytes of K and V, which a decoding step has to read.
  double key_value_bytes() const;
  // Whether it is more than masks and a scale: then three-step computes something else.
  bool has_pair_options() const {
    return bias != "none" || softcap > 0 || dropout > 0 || sinks || masks_pairs;
  }
  bool watches_forward() const { return statistics != Statistics::none && !backward; }
  // The options of the call, their tensors on `device`.
  AttentionOptions options(Device device) const;
  // Few queries for many keys: bound by memory, not by arithmetic.
  bool is_decode() const { return queries <= 16 && keys >= 8 * queries; }
};

// "B,H,Hk,Sq,Sk,D"; "full", "causal" or "window:L,R"; names of statistics, comma-separated, or
// "all". They throw CLI::ValidationError.
void parse_shape(const std::string& text, BenchCase& bench);
void parse_mask(const std::string& text, BenchCase& bench);
void parse_statistics(const std::string& text, BenchCase& bench);

}  // namespace qkv::cli

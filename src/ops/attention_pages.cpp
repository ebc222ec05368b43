#include "ops/attention_pages.h"

#include "core/check.h"
#include "ops/attention_checks.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

void check_pool(const char* name, const Tensor& x) {
  check(x.defined() && x.rank() == 4 && x.size(0) > 0 && x.size(2) > 0,
        "attention: {} must be pages [P, Hk, page, D], got {}", name, x.shape());
}

// What has the shape of all keys of all sequences, and no memory of its own.
Tensor stand_in(const Tensor& pool, std::int64_t batch, std::int64_t keys) {
  const Tensor one = slice(slice(pool, 0, 0, 1), 2, 0, 1);
  return expand(one, {batch, pool.size(1), keys, pool.size(3)});
}

// The table with page 0 wherever a sequence has no key: what stood there is not looked at.
Tensor check_table(const Tensor& pages, const Tensor& lengths, std::int64_t batch,
                   const Tensor& pool) {
  check(pages.dtype() == DType::i32 && pages.rank() == 2 && pages.size(0) == batch &&
            pages.size(1) > 0 && pages.device() == kCpu,
        "attention: pages must be i32 [{}, N] on the CPU, got {} {} on {}", batch, pages.dtype(),
        pages.shape(), pages.device());
  check(lengths.defined() && lengths.dtype() == DType::i32 && lengths.shape() == Shape{batch} &&
            lengths.device() == kCpu,
        "attention: pages need mask.key_lengths, i32 [{}] on the CPU, got {}", batch,
        lengths.defined() ? to_string(lengths.dtype()) + " " + to_string(lengths.shape())
                          : "nothing");
  const std::int64_t count = pages.size(1), page = pool.size(2);
  const std::int64_t room = Shape{count, page}.numel();  // Shape refuses what overflows
  std::vector<std::int32_t> table = pages.to_vector<std::int32_t>();
  const std::vector<std::int32_t> keys = lengths.to_vector<std::int32_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    check(keys[b] >= 0 && keys[b] <= room,
          "attention: mask.key_lengths[{}] is {}, but row {} of pages {} has room for {} keys", b,
          keys[b], b, pages.shape(), room);
    const std::int64_t used = (keys[b] + page - 1) / page;
    for (std::int64_t n = 0; n < count; ++n) {
      std::int32_t& entry = table[b * count + n];
      check(n >= used || (entry >= 0 && entry < pool.size(0)),
            "attention: pages[{}][{}] is {}, which is none of the {} pages of k", b, n, entry,
            pool.size(0));
      if (n >= used) entry = 0;
    }
  }
  return Tensor::from(table, pages.shape());
}

}  // namespace

AttentionProblem check_paged_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionOptions& options) {
  check(q.defined() && q.rank() == 4, "attention: q must be [B, H, S, D], got {}", q.shape());
  check_pool("k", k);
  check_pool("v", v);
  check(v.size(0) == k.size(0) && v.size(2) == k.size(2),
        "attention: v {} must have the pages of k {}", v.shape(), k.shape());
  check(!options.key_scale.defined() && !options.value_scale.defined() &&
            !options.mask.query_offsets.defined(),
        "attention: pages take neither i8 keys and values nor packed sequences");
  const Tensor table = check_table(options.pages, options.mask.key_lengths, q.size(0), k);
  AttentionOptions plain = options;
  plain.pages = {};
  const std::int64_t keys = table.size(1) * k.size(2);
  const Tensor all_values = stand_in(v, q.size(0), keys);
  AttentionProblem problem =
      check_attention("attention", q, stand_in(k, q.size(0), keys), &all_values, plain);
  problem.k = k;
  problem.v = v;
  problem.pages = table;
  return problem;
}

Tensor in_one_piece(const Tensor& pool, const Tensor& pages) {
  const std::int64_t heads = pool.size(1), page = pool.size(2), width = pool.size(3);
  const std::int64_t batch = pages.size(0), count = pages.size(1);
  const Tensor rows = embedding(pages, reshape(pool, {pool.size(0), -1}));
  const Tensor apart = reshape(rows, {batch, count, heads, page, width});
  return reshape(permute(apart, {0, 2, 1, 3, 4}), {batch, heads, count * page, width});
}

}  // namespace qkv

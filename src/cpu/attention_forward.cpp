// Forward: pack K and V of a few heads, run their blocks of rows on all threads, next heads.
#include <algorithm>
#include <numeric>

#include "core/threads.h"
#include "cpu/attention_block.h"
#include "cpu/attention_decode.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"
#include "qkv/threads.h"

namespace qkv::cpu {
namespace {

// Packed tiles of the heads at hand stay below this per thread, so that a second-level cache still
// has them when the blocks read them.
constexpr std::int64_t kPackedBytesPerThread = std::int64_t{1} << 20;
// Rows of received are summed in at most this many parts per head, one of each task: a number that
// does not depend on threads, so that neither do the bits.
constexpr std::int64_t kReceivedParts = 8;

// Threads wait at the end of a round of heads: one that has so many packs a head and runs its
// blocks alone. The tiles are then read by the core that wrote them.
constexpr std::int64_t kHeadsPerThread = 6;
// K and V of the next head are asked for where they leave room for this one's in the cache.
constexpr std::int64_t kElementsAhead = std::int64_t{1} << 16;

// Query-key pairs that make a task worth handing to a thread.
constexpr std::int64_t kPairsPerTask = 32768;

std::int64_t blocks(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// A run of row blocks of one (sequence, head), done by one thread.
struct Task {
  std::int64_t sequence, head, slot;  // slot: which packed head
  std::int64_t first_block, block_count;
  std::int64_t sums;      // index of its first block's sums
  std::int64_t received;  // index of its part of received
};

// Room for the packed tiles of some heads.
class PackedHeads {
 public:
  PackedHeads(const PackedTiles& sizes, std::int64_t tiles, std::int64_t heads)
      : tiles_(static_cast<std::size_t>(heads), sizes),
        bytes_(heads * tiles * (sizes.key_bytes + sizes.value_bytes)),
        finite_(static_cast<std::size_t>(heads * tiles)) {
    std::byte* at = bytes_.get();
    std::uint8_t* finite = finite_.data();
    for (PackedTiles& head : tiles_) {
      head.keys = at;
      head.values = at += tiles * sizes.key_bytes;
      at += tiles * sizes.value_bytes;
      head.values_finite = finite;
      finite += tiles;
    }
  }
  const PackedTiles& operator[](std::int64_t head) const {
    return tiles_[static_cast<std::size_t>(head)];
  }

 private:
  std::vector<PackedTiles> tiles_;
  Scratch<std::byte> bytes_;
  std::vector<std::uint8_t> finite_;
};

class Forward {
 public:
  Forward(const AttentionProblem& problem, const AttentionResults& results)
      : problem_(problem), results_(results), engine_(attention_engine(problem.q.dtype())) {
    const AttentionStatistics& s = results.statistics;
    collect_ = s.max_logit.defined() || s.score_mean.defined() || s.entropy.defined() ||
               s.saturation.defined();
    for (const AttentionSequence& sequence : problem.sequences) {
      longest_keys_ = std::max(longest_keys_, sequence.k_rows);
      most_tiles_ = std::max(most_tiles_, blocks(sequence.k_visible, engine_.tile_keys));
    }
  }

  void run() {
    plan_sums();
    const PackedTiles sizes = packed_sizes(problem_, engine_);
    const std::int64_t per_head =
        std::max<std::int64_t>(1, most_tiles_ * (sizes.key_bytes + sizes.value_bytes));
    const auto pairs = static_cast<std::int64_t>(problem_.sequences.size()) * problem_.key_heads;
    if (pairs == 0) return;
    const std::int64_t fit = kPackedBytesPerThread * num_threads() / per_head;
    const std::int64_t most = std::min(std::max(fit, std::int64_t{num_threads()}), pairs);
    const std::int64_t at_once = blocks(pairs, blocks(pairs, most));  // rounds of the same size
    if (pairs >= kHeadsPerThread * num_threads()) {
      parallel_for(pairs, [&](std::int64_t pair) {
        const PackedHeads packed(sizes, most_tiles_, 1);
        TensorsAhead ahead = inputs_of(pair + num_threads());
        run_pairs(pair, pair + 1, packed, &ahead);
      });
    } else {
      const PackedHeads packed(sizes, most_tiles_, at_once);
      for (std::int64_t first = 0; first < pairs; first += at_once) {
        run_pairs(first, std::min(pairs, first + at_once), packed);
      }
    }
    if (collect_) write_sums();
    if (results_.statistics.received.defined()) write_received();
  }

 private:
  std::int64_t blocks_of(std::int64_t sequence) const {
    return blocks(problem_.sequences[sequence].q_rows, engine_.tile_rows);
  }

  void plan_sums() {
    std::int64_t count = 0;
    for (std::size_t b = 0; b < problem_.sequences.size(); ++b) {
      first_sums_.push_back(count);
      count += blocks_of(static_cast<std::int64_t>(b)) * problem_.heads;
    }
    if (collect_) sums_.resize(static_cast<std::size_t>(count));
    if (!results_.statistics.received.defined()) return;
    for (std::int64_t b = 0; b < std::ssize(problem_.sequences); ++b) {
      parts_ = std::max(parts_, blocks(blocks_of(b), blocks_per_task(b)));
    }
    const std::int64_t size =
        std::ssize(problem_.sequences) * problem_.heads * parts_ * longest_keys_;
    received_ = Scratch<float>(size);
    std::fill_n(received_.get(), size, 0.0f);
  }

  // Short sequences share a task: what a task sets up should not cost more than its tiles.
  std::int64_t blocks_per_task(std::int64_t sequence) const {
    const std::int64_t pairs_per_block =
        engine_.tile_rows * std::max<std::int64_t>(problem_.sequences[sequence].k_visible, 1);
    const std::int64_t least =
        results_.statistics.received.defined() ? blocks(blocks_of(sequence), kReceivedParts) : 1;
    return std::max({std::int64_t{1}, least, kPairsPerTask / pairs_per_block});
  }

  // What a thread reads of the pair that it probably does next.
  TensorsAhead inputs_of(std::int64_t pair) const {
    TensorsAhead ahead;
    const std::int64_t index = pair / problem_.key_heads, head = pair % problem_.key_heads;
    if (index >= static_cast<std::int64_t>(problem_.sequences.size())) return ahead;
    const AttentionSequence& s = problem_.sequences[index];
    const auto add = [&](const Rows& from, std::int64_t rows, std::int64_t columns) {
      const auto item = static_cast<std::int64_t>(size_of(from.dtype));
      if (from.step == 1) ahead.add(from.data, from.stride * item, columns * item, rows);
    };
    const std::int64_t query_head = head * problem_.group();
    if (s.k_visible * (problem_.head_size + problem_.value_size) > kElementsAhead) return ahead;
    add(rows_of(problem_.k, s.k_batch, head, s.k_start), s.k_visible, problem_.head_size);
    add(rows_of(problem_.v, s.k_batch, head, s.k_start), s.k_visible, problem_.value_size);
    add(rows_of(problem_.q, s.q_batch, query_head, s.q_start), s.q_rows, problem_.head_size);
    ahead.share(s.q_rows * problem_.group() * blocks(s.k_visible, engine_.tile_keys) / kAskEvery);
    return ahead;
  }

  void run_pairs(std::int64_t first, std::int64_t last, const PackedHeads& packed,
                 TensorsAhead* ahead = nullptr) {
    parallel_for((last - first) * most_tiles_, [&](std::int64_t index) {
      const std::int64_t pair = first + index / most_tiles_, tile = index % most_tiles_;
      const std::int64_t sequence = pair / problem_.key_heads;
      if (tile * engine_.tile_keys >= problem_.sequences[sequence].k_visible) return;
      pack_tile(problem_, engine_, packed[pair - first], sequence, pair % problem_.key_heads, tile);
    });
    std::vector<Task> tasks;
    for (std::int64_t pair = first; pair < last; ++pair) add_tasks(pair, pair - first, tasks);
    // Later blocks of a causal mask see more keys: start with the long ones.
    parallel_for(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const Task& task = tasks[tasks.size() - 1 - static_cast<std::size_t>(index)];
      run_task(task, packed[task.slot], ahead);
    });
  }

  void add_tasks(std::int64_t pair, std::int64_t slot, std::vector<Task>& tasks) const {
    const std::int64_t sequence = pair / problem_.key_heads, group = problem_.group();
    const std::int64_t count = blocks_of(sequence);
    const std::int64_t step = blocks_per_task(sequence);
    for (std::int64_t g = 0; g < group; ++g) {
      const std::int64_t head = pair % problem_.key_heads * group + g;
      for (std::int64_t block = 0; block < count; block += step) {
        tasks.push_back({.sequence = sequence,
                         .head = head,
                         .slot = slot,
                         .first_block = block,
                         .block_count = std::min(step, count - block),
                         .sums = first_sums_[sequence] + head * count + block,
                         .received = (sequence * problem_.heads + head) * parts_ + block / step});
      }
    }
  }

  void run_task(const Task& task, const PackedTiles& packed, TensorsAhead* ahead) {
    const AttentionSequence& sequence = problem_.sequences[task.sequence];
    BlockMask mask(problem_, task.sequence);
    DiagonalBias diagonal(problem_, task.sequence, engine_.tile_keys);
    diagonal.set_head(task.head);
    const std::int64_t first = task.first_block * engine_.tile_rows;
    const std::int64_t last =
        std::min(first + task.block_count * engine_.tile_rows, sequence.q_rows);
    const Scratch<std::int64_t> rows(last - first);
    std::iota(rows.get(), rows.get() + (last - first), first);
    BlockJob job{problem_,      engine_,   packed,     mask,        diagonal,
                 task.sequence, task.head, rows.get(), last - first};
    job.results = &results_;
    job.ahead = ahead;
    if (collect_) job.sums = &sums_[static_cast<std::size_t>(task.sums)];
    if (received_.get() != nullptr) job.received = received_.get() + task.received * longest_keys_;
    run_blocks(job);
  }

  void write_sums() const {
    const AttentionStatistics& s = results_.statistics;
    for (std::size_t b = 0; b < problem_.sequences.size(); ++b) {
      const std::int64_t count = blocks_of(static_cast<std::int64_t>(b));
      for (std::int64_t head = 0; head < problem_.heads; ++head) {
        BlockSums all;
        for (std::int64_t block = 0; block < count; ++block) {
          all.add(sums_[static_cast<std::size_t>(first_sums_[b] + head * count + block)]);
        }
        write_statistics(s, all, static_cast<std::int64_t>(b) * problem_.heads + head);
      }
    }
  }

  void write_received() const {
    const Tensor& to = results_.statistics.received;  // [B, H, S] or [1, H, T]
    std::fill_n(to.data<float>(), to.numel(), 0.0f);
    for (std::size_t b = 0; b < problem_.sequences.size(); ++b) {
      const AttentionSequence& sequence = problem_.sequences[b];
      for (std::int64_t head = 0; head < problem_.heads; ++head) {
        float* row = to.data<float>() + (sequence.k_batch * problem_.heads + head) * to.size(2) +
                     sequence.k_start;
        const float* part =
            received_.get() +
            (static_cast<std::int64_t>(b) * problem_.heads + head) * parts_ * longest_keys_;
        for (std::int64_t i = 0; i < parts_; ++i, part += longest_keys_) {
          for (std::int64_t j = 0; j < sequence.k_rows; ++j) row[j] += part[j];
        }
      }
    }
  }

  const AttentionProblem& problem_;
  const AttentionResults& results_;
  const AttentionEngine& engine_;
  bool collect_ = false;
  std::int64_t longest_keys_ = 0, most_tiles_ = 0;
  std::int64_t parts_ = 0;  // of received, of a head
  std::vector<BlockSums> sums_;
  std::vector<std::int64_t> first_sums_;
  Scratch<float> received_;
};

// i8 keys or values [B, Hk, Sk, D] in a floating dtype.
Tensor widened(const Tensor& x, const Tensor& scale, DType dtype) {
  Tensor y = Tensor::empty(x.shape(), {dtype});
  const std::int64_t strides[] = {scale.stride(0), scale.stride(1), scale.stride(2), 1};
  const Shape column{scale.size(0), scale.size(1), scale.size(2), 1};
  if (x.numel() > 0) dequantize(x, scale.view(column, strides, 0), {.group = x.size(3)}, y);
  return y;
}

}  // namespace

AttentionKernels attention_kernels(const AttentionProblem& problem) {
  const std::string name = attention_engine(problem.q.dtype()).name;
  return {is_decode(problem) ? "decode" : name, attention_engine(DType::f32).name};
}

void attention_forward(const AttentionProblem& problem, const AttentionResults& results) {
  static_cast<void>(native_bf16_engine());  // settles the CPU target
  if (is_decode(problem)) return attention_decode(problem, results);
  if (!problem.k_scale.defined()) return Forward(problem, results).run();
  AttentionProblem wide = problem;  // many queries: a copy of the keys costs little beside them
  wide.k = widened(problem.k, problem.k_scale, problem.q.dtype());
  wide.v = widened(problem.v, problem.v_scale, problem.q.dtype());
  Forward(wide, results).run();
}

}  // namespace qkv::cpu

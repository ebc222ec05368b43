#include "bench_case.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <vector>

#include "io/shown.h"
#include "qkv/nn.h"
#include "qkv/ops.h"
#include "qkv/random.h"

namespace qkv::cli {
namespace {

constexpr std::int64_t kWidestWindow = 1 << 30;

// "1,-1,3" as numbers; nothing when any part is not one.
std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> values;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size()) return {};
    values.push_back(value);
  }
  return values;
}

}  // namespace

std::int64_t BenchCase::first_key(std::int64_t i) const {
  return mask.left < 0 ? 0 : std::clamp<std::int64_t>(position(i) - mask.left, 0, keys);
}

std::int64_t BenchCase::last_key(std::int64_t i) const {
  std::int64_t last = keys;
  if (mask.causal_part) last = std::min(last, position(i) + 1);
  if (mask.right >= 0) last = std::min(last, position(i) + mask.right + 1);
  return std::max(last, first_key(i));
}

double BenchCase::flops() const {
  double pairs = 0;
  if (mask.causal_part && queries == keys) {
    pairs = 0.5 * static_cast<double>(queries) * static_cast<double>(keys);
  } else {
    for (std::int64_t i = 0; i < queries; ++i)
      pairs += static_cast<double>(last_key(i) - first_key(i));
  }
  const double forward = 2.0 * static_cast<double>(batch * heads) * pairs *
                         static_cast<double>(head_size + value_size);
  return backward ? 2.5 * forward : forward;
}

double BenchCase::key_value_bytes() const {
  return static_cast<double>(batch * key_heads * keys * (head_size + value_size)) *
         static_cast<double>(size_of(dtype));
}

AttentionOptions BenchCase::options(Device device) const {
  AttentionOptions options;
  options.mask = mask;
  options.statistics = statistics;
  options.tf32 = tf32;
  options.softcap = softcap;
  options.dropout = dropout;
  options.seed = 3;
  Generator generator(4);
  if (bias == "tensor" || bias == "fixed") {
    options.bias =
        Bias::tensor(to(generator.normal({1, heads, queries, keys}, 0, 1, dtype), device));
    options.bias.gradient = bias == "tensor";
  } else if (bias == "alibi") {
    options.bias = Bias::alibi(to(nn::alibi_slopes(heads), device));
  } else if (bias == "relative") {
    constexpr std::int64_t kBuckets = 32;
    options.bias = Bias::relative(to(generator.normal({kBuckets, heads}), device), true);
  }
  if (sinks) options.sinks = to(generator.normal({heads}), device);
  if (masks_pairs) {
    const Tensor draws = generator.uniform({1, 1, queries, keys}, 0, 1);
    Tensor allowed = Tensor::empty(draws.shape(), {.dtype = DType::boolean});
    const std::span<const float> from{draws.data<float>(), static_cast<std::size_t>(draws.numel())};
    std::transform(from.begin(), from.end(), allowed.data<bool>(),
                   [](float x) { return x >= 0.125f; });
    options.mask = options.mask & Mask::allowed(to(allowed, device));
  }
  return options;
}

void parse_shape(const std::string& text, BenchCase& bench) {
  const auto values = numbers(text);
  if (values.size() != 6 ||
      std::any_of(values.begin(), values.end(), [](auto n) { return n < 1; })) {
    throw CLI::ValidationError("--shape",
                               "expected six positive numbers B,H,Hk,Sq,Sk,D, got '" + text + "'");
  }
  bench.batch = values[0];
  bench.heads = values[1];
  bench.key_heads = values[2];
  bench.queries = values[3];
  bench.keys = values[4];
  bench.head_size = bench.value_size = values[5];
  if (bench.heads % bench.key_heads != 0) {
    throw CLI::ValidationError("--shape", "H must be a multiple of Hk, got '" + text + "'");
  }
}

void parse_mask(const std::string& text, BenchCase& bench) {
  const std::string window = "window:";
  if (text == "full") {
    bench.mask = {};
  } else if (text == "causal") {
    bench.mask = Mask::causal();
  } else {
    const auto values = text.rfind(window, 0) == 0 ? numbers(text.substr(window.size()))
                                                   : std::vector<std::int64_t>{};
    const auto is_bound = [](std::int64_t n) { return n >= -1 && n <= kWidestWindow; };
    if (values.size() != 2 || !std::all_of(values.begin(), values.end(), is_bound)) {
      throw CLI::ValidationError(
          "--mask", "expected full, causal or window:L,R (-1 = unbounded, at most " +
                        std::to_string(kWidestWindow) + "), got '" + shown_name(text) + "'");
    }
    bench.mask = Mask::window(values[0], values[1]);
  }
}

void parse_statistics(const std::string& text, BenchCase& bench) {
  using enum Statistics;
  static const std::map<std::string, Statistics> known{{"all", all},
                                                       {"max_logit", max_logit},
                                                       {"score_moments", score_moments},
                                                       {"entropy", entropy},
                                                       {"received", received},
                                                       {"saturation", saturation},
                                                       {"top_weight", top_weight}};
  if (text.empty()) return;
  for (const std::string& name : CLI::detail::split(text, ',')) {
    const auto found = known.find(name);
    if (found == known.end()) {
      throw CLI::ValidationError(
          "--statistics",
          "expected all or some of max_logit,score_moments,entropy,top_weight,received,"
          "saturation, got '" +
              name + "'");
    }
    bench.statistics = bench.statistics | found->second;
  }
}

}  // namespace qkv::cli

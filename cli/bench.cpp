// qkv bench attention: ours, the plain three-step computation, and what the machine can do.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench_case.h"
#include "command.h"
#include "core/check.h"
#include "output.h"
#include "progress.h"
#include "qkv/cpu.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "qkv/threads.h"
#include "three_step.h"
#include "timing.h"

namespace qkv::cli {
namespace {

struct BenchOptions {
  Common common;
  BenchCase bench;
  std::string shape = "1,12,12,512,512,64", mask = "full", dtype = "f32", target;
  std::string statistics;       // none when empty
  std::int64_t value_size = 0;  // 0 = D
  TimingOptions timing;
  bool no_baseline = false, alone = false, why = false;
};

struct BenchResult {
  Timings ours, baseline;  // baseline is empty when left out
  Timings any_order;       // backward on a GPU without `deterministic`; else empty
  Timings unwatched;       // forward without the statistics that were asked for; else empty
  double peak_gflops = 0;
  double difference = 0;  // between the two results, as a share of the largest value
  AttentionKernels kernels;
};

struct Inputs {
  Tensor q, k, v, dout;
};

Inputs draw_inputs(const BenchCase& bench, Device device) {
  Generator generator(1);
  const auto draw = [&](std::int64_t heads, std::int64_t rows, std::int64_t size) {
    return to(generator.normal({bench.batch, heads, rows, size}, 0, 1, bench.dtype), device);
  };
  Inputs inputs{draw(bench.heads, bench.queries, bench.head_size),
                draw(bench.key_heads, bench.keys, bench.head_size),
                draw(bench.key_heads, bench.keys, bench.value_size),
                {}};
  if (bench.backward) inputs.dout = draw(bench.heads, bench.queries, bench.value_size);
  return inputs;
}

// The largest difference between two results, as a share of the largest value.
double difference(const Tensor& ours, const Tensor& plain) {
  const std::vector<float> a = to(ours, DType::f32).to_vector<float>();
  const std::vector<float> b = plain.to_vector<float>();
  double distance = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    distance = std::max(distance, std::abs(double{a[i]} - b[i]));
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return largest > 0 ? distance / largest : distance;
}

// A time is worth nothing when the two computed different things.
void check_difference(double apart, DType dtype) {
  const double allowed = dtype == DType::f32 ? 1e-3 : 5e-2;
  check(apart <= allowed,
        "bench attention: ours and three-step differ by {:.2g} of the largest value; at most {:g} "
        "is allowed for {}",
        apart, allowed, dtype);
}

// What a GPU can do: the product of two large matrices of this dtype, through the same library as
// the models'.
double cuda_peak_gflops(DType dtype, Device device) {
  constexpr std::int64_t kSize = 8192;
  Generator generator(2);
  const Tensor a = to(generator.uniform({kSize, kSize}, -1, 1, dtype), device);
  const Tensor b = to(generator.uniform({kSize, kSize}, -1, 1, dtype), device);
  Contender product;
  Tensor y;
  product.run = [&] {
    y = matmul(a, b);
    synchronize(device);
  };
  TimingOptions timing;
  timing.seconds = 0.2;
  take_turns({&product}, timing);
  return 2e-6 * std::pow(static_cast<double>(kSize), 3) / product.timings.median();
}

AttentionOptions without_statistics(AttentionOptions options) {
  options.statistics = Statistics::none;
  return options;
}

TimingOptions shown_by(Progress& progress, TimingOptions timing) {
  timing.progress = [&](int done, int total) { progress.update(done, total); };
  return timing;
}

// A GPU is asked for this many results before it is waited for: it works while it is asked, as in
// a model. Backward is timed in turns with one that adds up in any order.
constexpr int kQueued = 10;

BenchResult run_on_gpu(const BenchOptions& o, Device device) {
  const BenchCase& bench = o.bench;
  const Inputs in = draw_inputs(bench, device);
  const AttentionOptions options = bench.options(device);
  AttentionOptions any = options;
  any.deterministic = false;
  const AttentionOptions no_statistics = without_statistics(options);
  AttentionForward forward = attention_forward(in.q, in.k, in.v, options), next;
  AttentionGrads grads;
  const auto queue = [&](const AttentionOptions& with) {
    for (int i = 0; i < kQueued; ++i) {
      if (bench.backward) {
        grads = attention_backward(in.dout, in.q, in.k, in.v, forward, with);
      } else {
        next = attention_forward(in.q, in.k, in.v, with);
      }
    }
    synchronize(device);
  };
  Contender ours, any_order, unwatched;
  ours.run = [&] { queue(options); };
  any_order.run = [&] { queue(any); };
  unwatched.run = [&] { queue(no_statistics); };
  std::vector<Contender*> contenders{&ours};
  if (bench.backward && !o.alone) contenders.push_back(&any_order);
  if (bench.watches_forward() && !o.alone) contenders.push_back(&unwatched);
  Progress progress("timing attention");
  take_turns(contenders, shown_by(progress, o.timing));
  for (Contender* c : contenders) {
    for (double& ms : c->timings.milliseconds) ms /= kQueued;
  }
  BenchResult result;
  result.ours = ours.timings;
  result.any_order = any_order.timings;
  result.unwatched = unwatched.timings;
  result.peak_gflops = cuda_peak_gflops(bench.dtype, device);
  result.kernels = attention_kernels(in.q, in.k, in.v, options);
  return result;
}

BenchResult run_on_cpu(const BenchOptions& o) {
  const BenchCase& bench = o.bench;
  const Inputs in = draw_inputs(bench, kCpu);
  const AttentionOptions options = bench.options(kCpu);
  const AttentionOptions no_statistics = without_statistics(options);
  Contender ours, baseline, unwatched;
  // The result of one run is freed while the next is not timed.
  AttentionForward forward = attention_forward(in.q, in.k, in.v, options), next_forward;
  AttentionGrads grads, next_grads;
  if (bench.backward) {
    ours.run = [&] {
      next_grads = attention_backward(in.dout, in.q, in.k, in.v, forward, options);
    };
    ours.after = [&] { grads = std::move(next_grads); };
  } else {
    ours.run = [&] { next_forward = attention_forward(in.q, in.k, in.v, options); };
    ours.after = [&] { forward = std::move(next_forward); };
  }
  std::vector<Contender*> contenders{&ours};
  if (bench.watches_forward() && !o.alone) {
    unwatched.run = [&] { next_forward = attention_forward(in.q, in.k, in.v, no_statistics); };
    unwatched.after = [&] { next_forward = {}; };
    contenders.push_back(&unwatched);
  }
  std::optional<ThreeStep> plain;
  if (!o.no_baseline && !o.alone && !bench.has_pair_options()) {
    const auto widen = [](const Tensor& x) { return x.defined() ? to(x, DType::f32) : x; };
    plain.emplace(bench, widen(in.q), widen(in.k), widen(in.v), widen(in.dout));
    plain->forward();
    baseline.run = [&] { bench.backward ? plain->backward() : plain->forward(); };
    contenders.push_back(&baseline);
  }
  Progress progress("timing attention");
  take_turns(contenders, shown_by(progress, o.timing));
  BenchResult result;
  result.ours = ours.timings;
  result.baseline = baseline.timings;
  result.unwatched = unwatched.timings;
  result.peak_gflops = cpu_peak_gflops(bench.dtype);
  result.kernels = attention_kernels(in.q, in.k, in.v, options);
  if (plain && bench.backward) {
    result.difference =
        std::max({difference(grads.dq, plain->dq()), difference(grads.dk, plain->dk()),
                  difference(grads.dv, plain->dv())});
  } else if (plain) {
    result.difference = difference(forward.out, plain->out());
  }
  check_difference(result.difference, bench.dtype);
  return result;
}

double gflops(const BenchCase& bench, const Timings& timings) {
  return bench.flops() / timings.median() * 1e-6;
}

nlohmann::ordered_json report(const BenchOptions& options, const BenchResult& result) {
  const BenchCase& b = options.bench;
  const double ours = gflops(b, result.ours);
  nlohmann::ordered_json json{
      {"shape", {b.batch, b.heads, b.key_heads, b.queries, b.keys, b.head_size}},
      {"dv", b.value_size},
      {"dtype", to_string(b.dtype)},
      {"mask", options.mask},
      {"backward", b.backward},
      {"statistics", b.statistics != Statistics::none},
      {"tf32", b.tf32},
      {"bias", b.bias},
      {"softcap", b.softcap},
      {"dropout", b.dropout},
      {"sinks", b.sinks},
      {"pair_mask", b.masks_pairs},
      {"device", options.common.device},
      {"target", options.common.device == "cpu" ? cpu_target() : "cuda"},
      {"kernel", b.backward ? result.kernels.backward : result.kernels.forward},
      {"threads", num_threads()},
      {"runs", result.ours.milliseconds.size()},
      {"pause_ms", options.timing.pause_ms},
      {"ms", result.ours.median()},
      {"ms_fastest", result.ours.fastest()},
      {"gflops", ours},
      {"peak_gflops", result.peak_gflops},
      {"share", ours / result.peak_gflops}};
  if (b.is_decode()) json["gbytes_per_s"] = b.key_value_bytes() / result.ours.median() * 1e-6;
  if (!result.any_order.empty()) json["any_order_ms"] = result.any_order.median();
  if (!result.unwatched.empty()) {
    json["unwatched_ms"] = result.unwatched.median();
    json["statistics_cost"] = result.ours.times_as_long_as(result.unwatched) - 1;
  }
  const bool compared = !result.baseline.empty();
  json["baseline_ms"] = compared ? nlohmann::ordered_json(result.baseline.median()) : nullptr;
  json["baseline_ms_fastest"] =
      compared ? nlohmann::ordered_json(result.baseline.fastest()) : nullptr;
  json["baseline_gflops"] = compared ? nlohmann::ordered_json(gflops(b, result.baseline)) : nullptr;
  json["baseline_difference"] = compared ? nlohmann::ordered_json(result.difference) : nullptr;
  json["baseline_dtype"] = compared ? nlohmann::ordered_json("f32") : nullptr;
  return json;
}

void print_text(const BenchOptions& options, const BenchResult& result) {
  const BenchCase& b = options.bench;
  print_out("attention {}  B {}  H {}  Hk {}  Sq {}  Sk {}  D {}  Dv {}\n",
            b.backward ? "backward" : "forward", b.batch, b.heads, b.key_heads, b.queries, b.keys,
            b.head_size, b.value_size);
  print_out("{}, mask {}{}{}{}{}{}{}{}, ", to_string(b.dtype), options.mask,
            b.masks_pairs ? " and of pairs" : "", b.bias == "none" ? "" : ", bias " + b.bias,
            b.softcap > 0 ? fmt::format(", softcap {}", b.softcap) : "",
            b.dropout > 0 ? fmt::format(", dropout {}", b.dropout) : "", b.sinks ? ", sinks" : "",
            options.statistics.empty() ? "" : ", statistics: " + options.statistics,
            b.tf32 ? ", tf32 allowed" : "");
  if (options.common.device == "cpu") {
    print_out("target {}, {} thread{}\n\n", cpu_target(), num_threads(),
              num_threads() == 1 ? "" : "s");
  } else {
    print_out("on {}\n\n", options.common.device);
  }
  if (options.why) {
    print_out("  kernel      {}\n", b.backward ? result.kernels.backward : result.kernels.forward);
  }
  const std::string rested = options.timing.pause_ms > 0
                                 ? fmt::format(" after pauses of {} ms", options.timing.pause_ms)
                                 : "";
  const auto line = [&](const char* name, const Timings& timings) {
    print_out("  {:<12}{:>10.3f} ms{:>10.1f} GFLOP/s   median of {} runs{}, fastest {:.3f} ms\n",
              name, timings.median(), gflops(b, timings), timings.milliseconds.size(), rested,
              timings.fastest());
  };
  line("ours", result.ours);
  if (!result.any_order.empty()) line("any order", result.any_order);
  if (!result.unwatched.empty()) line("unwatched", result.unwatched);
  if (!result.baseline.empty()) line("three-step", result.baseline);
  print_out("  {:<12}{:>13}{:>10.1f} GFLOP/s   multiply-adds for {}, measured\n\n", "peak", "",
            result.peak_gflops, to_string(b.dtype));
  print_out("  ours reaches {:.1f} % of the peak",
            100 * gflops(b, result.ours) / result.peak_gflops);
  if (!result.baseline.empty()) {
    print_out(" and takes {:.2f} of the time of three-step (OpenBLAS{})",
              result.ours.median() / result.baseline.median(),
              b.dtype == DType::f32 ? "" : ", on inputs widened to f32 beforehand");
  }
  print_out("\n");
  if (!result.any_order.empty()) {
    print_out("  to add up in one order, always the same, takes {:+.1f} %\n",
              100 * (result.ours.times_as_long_as(result.any_order) - 1));
  }
  if (!result.unwatched.empty()) {
    print_out("  statistics take {:+.1f} %\n",
              100 * (result.ours.times_as_long_as(result.unwatched) - 1));
  }
  if (b.is_decode()) {
    print_out("  ours reads K and V at {:.1f} GB/s\n",
              b.key_value_bytes() / result.ours.median() * 1e-6);
  }
}

void run(BenchOptions& options) {
  options.common.apply();
  if (!options.target.empty()) set_cpu_target(options.target);
  const Device device = options.common.chosen_device();
  // Three-step on the CPU would take all of a GPU's memory; bench/peers_gpu.py has better company
  // for it.
  const BenchResult result = device == kCpu ? run_on_cpu(options) : run_on_gpu(options, device);
  if (options.common.json) {
    print_json(report(options, result));
  } else {
    print_text(options, result);
  }
}

// Turns text options into a BenchCase; throws CLI::ValidationError, so that mistakes are usage
// errors and not failures.
void resolve(BenchOptions& options) {
  BenchCase& bench = options.bench;
  parse_shape(options.shape, bench);
  parse_mask(options.mask, bench);
  parse_statistics(options.statistics, bench);
  bench.dtype = dtype_from_string(options.dtype);
  if (options.value_size > 0) bench.value_size = options.value_size;
}

}  // namespace

void add_bench(CLI::App& app, Job& job) {
  const std::string first = "qkv bench attention --shape 1,12,12,2048,2048,64 --mask causal";
  const std::string second =
      "qkv bench attention --shape 1,32,8,1,4096,128 --dtype bf16 --threads 2 --json";
  CLI::App* bench = app.add_subcommand("bench", "Time an operator or a model on this machine");
  bench->require_subcommand(1);
  bench->footer(examples(first, second));
  CLI::App* attention = bench->add_subcommand(
      "attention", "Time attention beside the plain three-step computation and the FMA peak");
  attention->footer(examples(first, second));
  const auto o = std::make_shared<BenchOptions>();
  attention->add_option("--shape", o->shape, "B,H,Hk,Sq,Sk,D")->capture_default_str();
  attention->add_option("--dv", o->value_size, "Size of a value (default: D)")
      ->check(CLI::Range(1, 1024));
  attention->add_option("--dtype", o->dtype, "Of queries, keys and values")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  attention->add_option("--mask", o->mask, "full, causal or window:L,R")->capture_default_str();
  attention->add_flag("--pair-mask", o->bench.masks_pairs,
                      "And a boolean mask of pairs, which hides an eighth of them");
  attention
      ->add_option("--bias", o->bench.bias,
                   "Added to scores: tensor (with a gradient), fixed (without), alibi, relative")
      ->check(CLI::IsMember({"none", "tensor", "fixed", "alibi", "relative"}))
      ->capture_default_str();
  attention->add_option("--softcap", o->bench.softcap, "Bound of scores (default: none)")
      ->check(CLI::Range(0.0, 1e6));
  attention->add_option("--dropout", o->bench.dropout, "Share of weights dropped")
      ->check(CLI::Range(0.0, 0.99));
  attention->add_flag("--sinks", o->bench.sinks, "A score for each head that carries no value");
  attention->add_flag("--backward", o->bench.backward, "Time the backward pass alone");
  attention->add_flag("--statistics{all}", o->statistics,
                      "Ask for all statistics, or for those named: --statistics=max_logit,entropy; "
                      "forward is timed without them, too");
  attention->add_flag("--tf32", o->bench.tf32,
                      "Let products of f32 round what they multiply to TF32, on a GPU");
  add_target(*attention, o->target);
  attention->add_option("--repeat", o->timing.repeat, "Timed runs (default: half a second's worth)")
      ->check(CLI::Range(1, 1000000));
  attention
      ->add_option("--pause", o->timing.pause_ms,
                   "Milliseconds of rest before each timed run: what a machine does before its "
                   "power or heat slows it")
      ->check(CLI::Range(0.0, 10000.0));
  attention->add_flag("--no-baseline", o->no_baseline, "Leave out the three-step computation");
  attention->add_flag("--alone", o->alone,
                      "Leave out all it would take turns with: three-step, the same without "
                      "statistics, or in any order");
  attention->add_flag("--why", o->why, "Tell which kernel ran, and what kept it from a faster one");
  o->common.add_to(*attention);
  attention->callback([&job, o] {
    resolve(*o);
    job = [o] { run(*o); };
  });
  add_bench_long(*bench, job);
  add_bench_model(*bench, job);
  add_bench_tokenizer(*bench, job);
  add_bench_train(*bench, job);
}

}  // namespace qkv::cli

// qkv bench train: steps of training on made-up text, timed by their parts.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "core/check.h"
#include "move_model.h"
#include "output.h"
#include "progress.h"
#include "qkv/memory.h"
#include "qkv/models/model.h"
#include "qkv/ops.h"
#include "qkv/optim.h"
#include "qkv/random.h"
#include "timing.h"
#include "train/health.h"

namespace qkv::cli {
namespace {

struct BenchTrainOptions {
  Common common;
  std::string config = "gpt2", dtype = "f32", rule = "adamw";
  std::int64_t batch = 8, length = 128;
  int steps = 10;
};

// Random ids: a loss that nothing can lower, of which no kernel knows anything.
Tensor draw_ids(const BenchTrainOptions& o, std::int64_t vocabulary, std::uint64_t seed) {
  const std::vector<float> drawn = Generator(seed).uniform({o.batch * o.length}).to_vector<float>();
  std::vector<std::int64_t> ids;
  for (const float x : drawn) {
    const auto id = static_cast<std::int64_t>(x * static_cast<float>(vocabulary));
    ids.push_back(std::min(id, vocabulary - 1));
  }
  return Tensor::from(ids, {o.batch, o.length});
}

// Products of weights and of attention, forward and backward, for one step: each product of the
// forward has two of its size behind it.
double flops_of(Model& model, const BenchTrainOptions& o) {
  const ModelInfo& info = model.info();
  double weights = 0;
  bool has_head = false;
  for (const nn::Parameter& p : nn::parameters(model)) {
    const bool is_table =
        p.name.find("embed") != std::string::npos || p.name.find("wte") != std::string::npos ||
        p.name.find("wpe") != std::string::npos || p.name.find("shared") != std::string::npos;
    if (p.value.rank() != 2 || is_table || p.name.ends_with("logits_bias")) continue;
    has_head |= p.name.find("lm_head") != std::string::npos;
    weights += static_cast<double>(p.value.numel());
  }
  if (!has_head) weights += static_cast<double>(info.vocabulary * info.hidden);  // tied
  const auto tokens = static_cast<double>(o.batch * o.length);
  const bool is_pair = info.kind == ModelKind::encoder_decoder;
  // Scores and sums over values: 4 S D for each query, half of it under a causal mask.
  const double each = 4.0 * static_cast<double>(o.length * info.hidden);
  const double layers = static_cast<double>(info.layers) * (is_pair ? 2.5 : 1);
  const double seen = info.kind == ModelKind::decoder ? 0.5 : 1;
  return 3 * tokens * (2 * weights + layers * seen * each);
}

struct StepTimes {
  Timings forward, backward, optimizer, whole;
  Timings quiet, told;     // steps in turns: without and with the health of the scores
  std::size_t memory = 0;  // the most in use during a step without, bytes
};

StepTimes time_steps(Model& model, const BenchTrainOptions& o) {
  const Device device = o.common.chosen_device();
  std::vector<Tensor> parameters;
  for (const nn::Parameter& p : nn::parameters(model)) parameters.push_back(p.value);
  Optimizer optimizer(parameters, {.rule = optimizer_rule_from_string(o.rule), .clip_norm = 1});
  const Tensor ids = draw_ids(o, model.info().vocabulary, 1);
  const Tensor labels = draw_ids(o, model.info().vocabulary, 2);
  const nn::Training plain{.dtype = o.dtype == "f32" ? DType::f32 : DType::bf16};
  const auto now = [&](bool waits) {
    if (waits) synchronize(device);
    return std::chrono::steady_clock::now();
  };
  StepTimes times;
  const auto between = [](auto a, auto b) {
    return std::chrono::duration<double, std::milli>(b - a).count();
  };
  const auto step = [&](bool waits, bool tells = false) {
    const auto begin = now(waits);
    auto forward = begin, backward = begin;
    std::optional<ScoreHealth> health;
    const auto pass = [&] {  // what it holds goes before anybody waits, as in training
      nn::Training training = plain;
      if (tells) training.statistics = kHealthStatistics;
      Tape tape;
      const Tensor loss = model.loss({.ids = ids}, labels, {.training = &training});
      forward = now(waits);
      if (tells) watch_scores(tape, training);
      Gradients found = tape.backward(loss);
      backward = now(waits);
      if (tells) health.emplace(training, found);
      return found;
    };
    optimizer.step(pass());
    optimizer.norm();
    if (health) health->read();
    if (!waits) return;
    const auto end = now(true);
    times.forward.milliseconds.push_back(between(begin, forward));
    times.backward.milliseconds.push_back(between(forward, backward));
    times.optimizer.milliseconds.push_back(between(backward, end));
  };
  Progress progress("timing training");
  for (int i = 0; i < 2; ++i) step(false);  // warm
  for (int i = 0; i < o.steps; ++i) {
    step(true);
    progress.update(i + 1, 4 * o.steps);
  }
  // As in training, what is waited for comes before the optimiser's work: it covers the beginning
  // of the next step, and what the parts leave idle is used.
  reset_peak_memory(device);
  const auto begin = now(true);
  for (int i = 0; i < o.steps; ++i) step(false);
  times.whole.milliseconds.push_back(between(begin, now(true)) / o.steps);
  times.memory = memory_use(device).peak;
  for (int i = 0; i < 2 * o.steps; ++i) {
    const bool tells = i % 2 != 0;
    const auto start = now(true);
    step(false, tells);
    (tells ? times.told : times.quiet).milliseconds.push_back(between(start, now(true)));
    progress.update(2 * o.steps + i + 1, 4 * o.steps);
  }
  return times;
}

// What the device can do: the product of two large matrices of the dtype of the weights.
double peak_flops(const BenchTrainOptions& o) {
  const Device device = o.common.chosen_device();
  const std::int64_t size = device == kCpu ? 1024 : 8192;
  const DType dtype = dtype_from_string(o.dtype);
  Generator generator(2);
  const Tensor a = to(generator.uniform({size, size}, -1, 1, dtype), device);
  const Tensor b = to(generator.uniform({size, size}, -1, 1, dtype), device);
  Contender product;
  Tensor y;
  product.run = [&] {
    y = matmul(a, b);
    synchronize(device);
  };
  take_turns({&product}, {.seconds = 0.2});
  const auto n = static_cast<double>(size);
  return 2e3 * n * n * n / product.timings.median();
}

void print_training(const nlohmann::ordered_json& r) {
  print_out("{}, {:.1f} M parameters, {} on {}\n", r["model"].get<std::string>(),
            r["parameters"].get<double>() * 1e-6, r["dtype"].get<std::string>(),
            r["device"].get<std::string>());
  print_out("batches of {} sequences of {} tokens\n\n", r["batch"].get<std::int64_t>(),
            r["length"].get<std::int64_t>());
  for (const char* part : {"forward", "backward", "optimizer"}) {
    print_out("  {:<10}{:>10.2f} ms\n", part, r[std::string(part) + "_ms"].get<double>());
  }
  print_out("  {:<10}{:>10.2f} ms{:>14.0f} tokens/s\n", "step", r["step_ms"].get<double>(),
            r["tokens_per_s"].get<double>());
  print_out("  {:<10}{:>10.2f} ms{:>+13.1f} % for a step that reports the health of the scores\n",
            "health", r["health_ms"].get<double>(), 100 * r["health_cost"].get<double>());
  print_out("  {:<10}{:>10.2f} GiB at most\n", "memory",
            r["peak_memory_bytes"].get<double>() / (1 << 30));
  print_out("\n  {:.1f} TFLOP/s, {:.0f}% of a large product's {:.1f}\n", r["tflops"].get<double>(),
            100 * r["share_of_peak"].get<double>(), r["peak_tflops"].get<double>());
}

void run_bench_train(const BenchTrainOptions& o) {
  o.common.apply();
  const std::vector<std::string> presets = model_presets();
  check(std::filesystem::exists(o.config) ||
            std::find(presets.begin(), presets.end(), o.config) != presets.end(),
        "bench train: '{}' is no config.json and no preset; presets are {}", o.config,
        fmt::join(presets, ", "));
  const std::unique_ptr<Model> model = make_model(o.config, 1, dtype_from_string(o.dtype));
  check(model->info().kind != ModelKind::encoder,
        "bench train: {} has no loss on text; choose a decoder or an encoder-decoder", o.config);
  move_model(*model, o.common.chosen_device());
  const StepTimes times = time_steps(*model, o);
  const double ms = times.whole.median(), flops = flops_of(*model, o) * 1e3 / ms;
  const double peak = peak_flops(o);
  const nlohmann::ordered_json report{
      {"model", o.config},
      {"parameters", nn::count_parameters(*model)},
      {"dtype", o.dtype},
      {"device", to_string(o.common.chosen_device())},
      {"batch", o.batch},
      {"length", o.length},
      {"steps", o.steps},
      {"forward_ms", times.forward.median()},
      {"backward_ms", times.backward.median()},
      {"optimizer_ms", times.optimizer.median()},
      {"step_ms", ms},
      {"health_ms", times.told.median()},
      {"health_cost", times.told.median() / times.quiet.median() - 1},
      {"tokens_per_s", 1e3 * static_cast<double>(o.batch * o.length) / ms},
      {"peak_memory_bytes", times.memory},
      {"tflops", 1e-12 * flops},
      {"peak_tflops", 1e-12 * peak},
      {"share_of_peak", flops / peak}};
  if (o.common.json) {
    print_json(report);
  } else {
    print_training(report);
  }
}

}  // namespace

void add_bench_train(CLI::App& bench, Job& job) {
  CLI::App* train = bench.add_subcommand("train", "Time steps of training; no files needed");
  train->footer(examples("qkv bench train gpt2 --batch 32 --length 1024 --dtype bf16 --device cuda",
                         "qkv bench train path/to/config.json --batch 4 --length 64 --json"));
  const auto o = std::make_shared<BenchTrainOptions>();
  o->common.add_to(*train);
  train
      ->add_option("config", o->config,
                   fmt::format("A preset ({}) or a config.json", fmt::join(model_presets(), ", ")))
      ->type_name("FILE")
      ->capture_default_str();
  train->add_option("--batch", o->batch, "Sequences")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  train->add_option("--length", o->length, "Tokens of each")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  train->add_option("--dtype", o->dtype, "Of the weights and the residual stream: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  train->add_option("--optimizer", o->rule, "adamw, lion or sgd")
      ->check(CLI::IsMember({"adamw", "lion", "sgd"}))
      ->capture_default_str();
  train->add_option("--steps", o->steps, "Timed steps")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  train->callback([&job, o] { job = [o] { run_bench_train(*o); }; });
}

}  // namespace qkv::cli

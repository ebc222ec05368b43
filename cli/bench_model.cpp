// qkv bench model: a whole Transformer with random weights (or those of a folder), timed.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "models/decoding.h"
#include "move_model.h"
#include "output.h"
#include "progress.h"
#include "qkv/cpu.h"
#include "qkv/models/model.h"
#include "qkv/threads.h"
#include "timing.h"

namespace qkv::cli {
namespace {

struct BenchModelOptions {
  Common common;
  std::string model = "gpt2", dtype, kv_dtype, target;
  std::int64_t batch = 1, tokens = 128, decode = 64, group = 0;
  int repeat = 0;

  nn::KvCache cache(std::int64_t capacity) const {
    if (kv_dtype.empty()) return nn::KvCache(capacity);
    return nn::KvCache(capacity, dtype_from_string(kv_dtype));
  }
};

Tensor draw_ids(std::int64_t batch, std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(batch * count));  // what is too much is refused at once
  for (std::int64_t i = 0; i < batch * count; ++i) ids.push_back((i * 7919 + 13) % vocabulary);
  return Tensor::from(ids, {batch, count});
}

std::unique_ptr<Model> open_model(const BenchModelOptions& o) {
  if (std::filesystem::is_directory(o.model)) {
    LoadOptions load{.group = o.group, .device = o.common.chosen_device()};
    if (!o.dtype.empty()) load.dtype = dtype_from_string(o.dtype);
    return load_model(o.model, load);
  }
  check(std::filesystem::exists(o.model) || !o.model.ends_with(".json"),
        "bench model: {} does not exist", o.model);
  const std::vector<std::string> presets = model_presets();
  check(o.model.ends_with(".json") ||
            std::find(presets.begin(), presets.end(), o.model) != presets.end(),
        "bench model: '{}' is no folder, no config.json and no preset; presets are {}", o.model,
        fmt::join(presets, ", "));
  std::unique_ptr<Model> model =
      make_model(o.model, 1, dtype_from_string(o.dtype.empty() ? "f32" : o.dtype), o.group);
  move_model(*model, o.common.chosen_device());
  return model;
}

// The whole input at once: an encoder's work, a decoder's prefill, an encoder-decoder's encoding.
Timings time_forward(const Model& model, const BenchModelOptions& o) {
  const Tensor ids = draw_ids(o.batch, o.tokens, model.info().vocabulary);
  Contender forward;
  ModelOutput out;
  const bool is_decoder = model.info().kind == ModelKind::decoder;
  forward.run = [&] {
    nn::KvCache cache = o.cache(o.tokens);
    out = model({.ids = ids}, {.cache = is_decoder ? &cache : nullptr, .last_logits_only = true});
    synchronize(o.common.chosen_device());
  };
  Progress progress(is_decoder ? "timing prefill" : "timing forward");
  TimingOptions timing;
  timing.repeat = o.repeat;
  timing.progress = [&](int done, int total) { progress.update(done, total); };
  take_turns({&forward}, timing);
  return forward.timings;
}

struct DecodeTimes {
  Timings steps;
  std::size_t cache_bytes = 0;
};

// Token by token behind a prompt, as `qkv generate` does it, but for the choice of the token.
DecodeTimes time_decode(const Model& model, const BenchModelOptions& o, bool records) {
  const std::int64_t vocabulary = model.info().vocabulary;
  const std::vector<std::int64_t> ids =
      draw_ids(o.batch, o.tokens, vocabulary).to_vector<std::int64_t>();
  std::vector<std::vector<std::int64_t>> prompts;
  for (std::int64_t b = 0; b < o.batch; ++b) {
    prompts.emplace_back(ids.begin() + b * o.tokens, ids.begin() + (b + 1) * o.tokens);
  }
  constexpr int kWarm = 3;
  DecodingOptions options{.max_new_tokens = o.decode + kWarm + 1,
                          .decoder_start_id = model.info().decoder_start_id};
  if (!o.kv_dtype.empty()) options.kv_dtype = dtype_from_string(o.kv_dtype);
  Decoding decoding(model, prompts, options);
  check(decoding.steps() == options.max_new_tokens,
        "bench model: {} tokens and {} more are too many for the {} positions of the model",
        o.tokens, options.max_new_tokens, model.info().max_positions);
  decoding.records = records;
  const Device device = o.common.chosen_device();
  const std::vector<std::int64_t> next = draw_ids(o.batch, 1, vocabulary).to_vector<std::int64_t>();
  decoding.start();
  for (int i = 0; i < kWarm; ++i) decoding.step(next);
  synchronize(device);
  DecodeTimes result;
  Progress progress("timing decode");
  for (std::int64_t i = 0; i < o.decode; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    decoding.step(next);
    synchronize(device);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    result.steps.milliseconds.push_back(taken.count());
    progress.update(static_cast<int>(i + 1), static_cast<int>(o.decode));
  }
  result.cache_bytes = decoding.cache_bytes();
  return result;
}

std::size_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

void print_model(const nlohmann::ordered_json& r) {
  print_out("{} ({}), {:.1f} M parameters, {} weights of {:.0f} MB\n",
            r["model"].get<std::string>(), r["kind"].get<std::string>(),
            r["parameters"].get<double>() * 1e-6, r["dtype"].get<std::string>(),
            r["weight_bytes"].get<double>() * 1e-6);
  print_out("batch {}, {} tokens, target {}, {} threads\n\n", r["batch"].get<std::int64_t>(),
            r["tokens"].get<std::int64_t>(), r["target"].get<std::string>(),
            r["threads"].get<int>());
  print_out("  {:<10}{:>10.2f} ms{:>12.1f} tokens/s{:>10.1f} GFLOP/s\n",
            r["kind"] == "decoder" ? "prefill" : "forward", r["ms"].get<double>(),
            r["tokens_per_s"].get<double>(), r["gflops"].get<double>());
  if (r.contains("decode_ms")) {
    print_out("  {:<10}{:>10.2f} ms{:>12.1f} tokens/s{:>10.1f} GB/s of weights\n", "decode",
              r["decode_ms"].get<double>(), r["decode_tokens_per_s"].get<double>(),
              r["decode_gbytes_per_s"].get<double>());
  }
  if (r.contains("decode_ms_unrecorded")) {
    print_out("  {:<10}{:>10.2f} ms  kernel by kernel, not recorded\n", "",
              r["decode_ms_unrecorded"].get<double>());
  }
  print_out("\n  opened in {:.1f} ms, peak memory {:.0f} MB\n", r["open_ms"].get<double>(),
            r["peak_memory_bytes"].get<double>() * 1e-6);
}

void run_bench_model(const BenchModelOptions& o) {
  o.common.apply();
  if (!o.target.empty()) set_cpu_target(o.target);
  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<Model> model = open_model(o);
  const std::chrono::duration<double, std::milli> opened = std::chrono::steady_clock::now() - begin;
  std::size_t bytes = 0;
  const std::int64_t count = nn::count_parameters(*model);
  std::int64_t in_products = 0;
  DType dtype = DType::f32;
  for (const nn::Parameter& p : nn::parameters(*model)) {
    bytes += static_cast<std::size_t>(p.value.numel()) * size_of(p.value.dtype());
    if (p.name.ends_with("_scale")) continue;  // of int8
    if (p.value.rank() == 2) dtype = p.value.dtype();
    // Tables are looked up, not multiplied; a tied head is counted with the decoding step below.
    const bool is_table =
        p.name.find("embed") != std::string::npos || p.name.find("wte") != std::string::npos ||
        p.name.find("wpe") != std::string::npos || p.name.find("shared") != std::string::npos;
    if (p.value.rank() == 2 && !is_table) in_products += p.value.numel();
  }
  const ModelInfo& info = model->info();
  const Timings forward = time_forward(*model, o);
  const double tokens = static_cast<double>(o.batch * o.tokens);
  nlohmann::ordered_json report{
      {"model", o.model},
      {"kind", to_string(info.kind)},
      {"parameters", count},
      {"dtype", to_string(dtype)},
      {"weight_bytes", bytes},
      {"open_ms", opened.count()},
      {"target", cpu_target()},
      {"threads", num_threads()},
      {"batch", o.batch},
      {"tokens", o.tokens},
      {"runs", forward.milliseconds.size()},
      {"ms", forward.median()},
      {"ms_fastest", forward.fastest()},
      {"tokens_per_s", 1e3 * tokens / forward.median()},
      {"gflops", 2e-6 * tokens * static_cast<double>(in_products) / forward.median()}};
  if (info.kind != ModelKind::encoder && o.decode > 0) {
    const DecodeTimes decoding = time_decode(*model, o, true);
    const double ms = decoding.steps.median();
    const std::int64_t read = in_products + info.vocabulary * info.hidden;
    report["decode_steps"] = o.decode;
    report["decode_ms"] = ms;
    report["decode_ms_fastest"] = decoding.steps.fastest();
    report["decode_tokens_per_s"] = 1e3 * static_cast<double>(o.batch) / ms;
    report["decode_gbytes_per_s"] =
        1e-6 * static_cast<double>(read) * static_cast<double>(size_of(dtype)) / ms;
    report["cache_bytes"] = decoding.cache_bytes;
    if (o.common.chosen_device() != kCpu) {
      report["decode_ms_unrecorded"] = time_decode(*model, o, false).steps.median();
    }
  }
  report["peak_memory_bytes"] = peak_memory();
  if (o.common.json) {
    print_json(report);
  } else {
    print_model(report);
  }
}

}  // namespace

void add_bench_model(CLI::App& bench, Job& job) {
  CLI::App* model = bench.add_subcommand("model", "Time a whole model; no files needed");
  model->footer(examples("qkv bench model bert-base --batch 8 --tokens 128 --dtype bf16",
                         "qkv bench model path/to/config.json --tokens 512 --decode 64 --json"));
  const auto o = std::make_shared<BenchModelOptions>();
  o->common.add_to(*model);
  model
      ->add_option("model", o->model,
                   fmt::format("A preset ({}), a config.json or a model folder",
                               fmt::join(model_presets(), ", ")))
      ->type_name("FILE")
      ->capture_default_str();
  model->add_option("--batch", o->batch, "Sequences")->check(CLI::Range(1, 65536));
  model->add_option("--tokens", o->tokens, "Tokens of each, before anything is decoded")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  model->add_option("--decode", o->decode, "Decoding steps to time; 0 = none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  model->add_option("--dtype", o->dtype, "Of the weights: f32, bf16, f16 or i8")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "i8"}));
  model->add_option("--group", o->group, "With i8: inputs that share a scale; 0 = all of a row")
      ->check(CLI::IsMember({0, 32, 64, 128}))
      ->capture_default_str();
  model->add_option("--kv-dtype", o->kv_dtype, "Of the cache: bf16 or i8 (default: as computed)")
      ->check(CLI::IsMember({"bf16", "i8"}));
  add_target(*model, o->target);
  model->add_option("--repeat", o->repeat, "Timed runs (default: half a second's worth)")
      ->check(CLI::Range(1, 1000000));
  model->callback([&job, o] { job = [o] { run_bench_model(*o); }; });
}

}  // namespace qkv::cli

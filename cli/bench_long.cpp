// qkv bench long: exact attention and the three ways around its cost, by length.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "core/check.h"
#include "io/file.h"
#include "output.h"
#include "progress.h"
#include "qkv/attention.h"
#include "qkv/autograd.h"
#include "qkv/cpu.h"
#include "qkv/linear_attention.h"
#include "qkv/memory.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "qkv/threads.h"
#include "study/page.h"
#include "timing.h"

namespace qkv::cli {
namespace {

using Json = nlohmann::ordered_json;

struct BenchLongOptions {
  Common common;
  std::vector<std::int64_t> lengths{1024, 2048, 4096, 8192, 16384};
  std::int64_t heads = 8, head_size = 64, window = 512, length = 256, features = 256;
  std::string dtype = "f32", target;
  double limit = 20;  // seconds that one run may take
  bool causal = false;
  std::string out;  // of a drawing
};

struct LongInputs {
  Tensor q, k, v, dout;
  Tensor directions, e, f;
};

// [rows, length, size], uniform in [-bound, bound]. Random numbers are drawn on the CPU: of what is
// long, the beginning is repeated on the device.
Tensor draw(Generator& random, const std::array<std::int64_t, 3>& extents, float bound,
            const BenchLongOptions& o) {
  constexpr std::int64_t kMostDrawn = 1 << 16;
  const auto [rows, length, size] = extents;
  const std::int64_t drawn = length % kMostDrawn == 0 ? kMostDrawn : length;
  const Tensor part =
      to(random.uniform({rows, 1, drawn, size}, -bound, bound), o.common.chosen_device());
  const Tensor whole =
      expand(to(part, dtype_from_string(o.dtype)), {rows, length / drawn, drawn, size});
  return reshape(contiguous(whole), {rows, length, size});
}

LongInputs draw_long_inputs(const BenchLongOptions& o, std::int64_t length) {
  const Device device = o.common.chosen_device();
  Generator random(1);
  const auto heads = [&] {  // [1, H, S, D] as a layer has them: a view of [1, S, H, D]
    const Tensor rows = draw(random, {1, length, o.heads * o.head_size}, 1.7f, o);
    return transpose(reshape(rows, {1, length, o.heads, o.head_size}), 1, 2);
  };
  LongInputs in{heads(), heads(), heads(), heads(), {}, {}, {}};
  in.directions = to(orthogonal_directions(o.features, o.head_size, 1), device);
  const float share = 1 / std::sqrt(static_cast<float>(length));
  in.e = reshape(draw(random, {o.length, length, 1}, share, o), {o.length, length});
  in.f = reshape(draw(random, {o.length, length, 1}, share, o), {o.length, length});
  return in;
}

struct Method {
  const char* name;
  std::function<Tensor(const LongInputs&)> run;
};

std::vector<Method> methods_of(const BenchLongOptions& o) {
  const Mask causal = o.causal ? Mask::causal() : Mask();
  std::vector<Method> methods;
  methods.push_back({"exact", [=](const LongInputs& in) {
                       return attention(in.q, in.k, in.v, {.mask = causal});
                     }});
  methods.push_back({"longformer", [=, half = o.window / 2](const LongInputs& in) {
                       return attention(in.q, in.k, in.v,
                                        {.mask = causal & Mask::window(half, half)});
                     }});
  if (!o.causal) {
    methods.push_back({"linformer", [](const LongInputs& in) {
                         return attention(in.q, matmul(in.e, in.k), matmul(in.f, in.v));
                       }});
  }
  methods.push_back({"performer", [is_causal = o.causal](const LongInputs& in) {
                       return performer_attention(in.q, in.k, in.v, in.directions, {}, is_causal);
                     }});
  return methods;
}

struct Cell {
  double ms = 0;          // the median
  double fastest = 0;     // growth is told by it: what else a machine does only adds
  std::size_t bytes = 0;  // beyond what was there before: result, gradients, working memory
};

// Longer runs are timed three times, the longest twice: what a first run costs extra, memory that
// the system has to find and clear, is not what a method costs.
constexpr double kLongMs = 1500, kVeryLongMs = 8000;

Cell measure(const Method& method, const LongInputs& in, bool backward, Device device) {
  Contender contender;
  Tensor y;
  Gradients gradients;
  contender.run = [&] {
    if (backward) {
      Tape tape;
      gradients = tape.backward(method.run(in), in.dout);
    } else {
      y = method.run(in);
    }
    synchronize(device);
  };
  contender.after = [&] {
    y = {};
    gradients = {};
  };
  const auto time_once = [&] {
    const auto begin = std::chrono::steady_clock::now();
    contender.run();
    const auto end = std::chrono::steady_clock::now();
    contender.timings.milliseconds.push_back(
        std::chrono::duration<double, std::milli>(end - begin).count());
  };
  Cell cell;
  reset_peak_memory(device);
  const std::size_t before = memory_use(device).now;
  time_once();
  const std::size_t peak = memory_use(device).peak;
  cell.bytes = peak > before ? peak - before : 0;
  contender.after();
  const double first = contender.timings.fastest();
  if (first <= kLongMs) {
    contender.timings = {};
    take_turns({&contender}, {.seconds = 0.3});
  }
  const int more = first <= kLongMs ? 0 : first <= kVeryLongMs ? 2 : 1;
  for (int i = 0; i < more; ++i) {
    time_once();
    contender.after();
  }
  cell.ms = contender.timings.median();
  cell.fastest = contender.timings.fastest();
  return cell;
}

struct MethodRow {
  std::string method;
  bool backward = false;
  std::vector<std::optional<Cell>> cells{};  // by length; absent where a run would take too long
};

// How much longer a doubling takes, from the second length on: before that, what does not depend on
// the length still counts. The mean is that of factors, the worst the largest.
struct Growth {
  double mean = 0, worst = 0;
};
Growth growth_of(const MethodRow& row, const std::vector<std::int64_t>& lengths) {
  Growth growth;
  double logs = 0;
  int doublings = 0;
  for (std::size_t i = 2; i < row.cells.size(); ++i) {
    if (!row.cells[i] || !row.cells[i - 1] || lengths[i] != 2 * lengths[i - 1]) continue;
    const double factor = row.cells[i]->fastest / row.cells[i - 1]->fastest;
    growth.worst = std::max(growth.worst, factor);
    logs += std::log(factor);
    ++doublings;
  }
  if (doublings > 0) growth.mean = std::exp(logs / doublings);
  return growth;
}

// The first length from which on it is never slower than exact attention.
std::optional<std::int64_t> crossing(const MethodRow& row, const MethodRow& exact,
                                     const std::vector<std::int64_t>& lengths) {
  std::optional<std::int64_t> from;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (!row.cells[i]) continue;
    const bool wins = !exact.cells[i] || row.cells[i]->ms < exact.cells[i]->ms;
    if (wins && !from) from = lengths[i];
    if (!wins) from.reset();
  }
  return from;
}

std::vector<MethodRow> run_all(const BenchLongOptions& o) {
  const std::vector<Method> methods = methods_of(o);
  std::vector<MethodRow> rows;
  for (const bool backward : {false, true}) {
    for (const Method& method : methods) rows.push_back({method.name, backward});
  }
  Progress progress("timing by length");
  const int total = static_cast<int>(o.lengths.size() * rows.size());
  int done = 0;
  for (const std::int64_t length : o.lengths) {
    const LongInputs in = draw_long_inputs(o, length);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      MethodRow& row = rows[r];
      // Exact attention takes four times as long at twice the length.
      const bool stopped = !row.cells.empty() && !row.cells.back();
      const bool too_long = !row.cells.empty() && row.cells.back() && row.method == "exact" &&
                            row.cells.back()->ms * 4 > 1e3 * o.limit;
      if (stopped || too_long) {
        row.cells.emplace_back();
      } else {
        row.cells.emplace_back(
            measure(methods[r % methods.size()], in, row.backward, o.common.chosen_device()));
      }
      progress.update(++done, total);
    }
  }
  return rows;
}

Json report(const BenchLongOptions& o, const std::vector<MethodRow>& rows) {
  Json json{{"device", o.common.device}, {"target", cpu_target()},   {"threads", num_threads()},
            {"heads", o.heads},          {"head_size", o.head_size}, {"dtype", o.dtype},
            {"causal", o.causal},        {"window", o.window},       {"length", o.length},
            {"features", o.features},    {"lengths", o.lengths}};
  const std::size_t methods = rows.size() / 2;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const MethodRow& row = rows[r];
    Json entry{{"method", row.method}, {"backward", row.backward}};
    for (const auto& cell : row.cells) {
      entry["ms"].push_back(cell ? Json(cell->ms) : Json());
      entry["ms_fastest"].push_back(cell ? Json(cell->fastest) : Json());
      entry["bytes"].push_back(cell ? Json(cell->bytes) : Json());
    }
    const Growth growth = growth_of(row, o.lengths);
    entry["growth"] = growth.worst;
    entry["growth_mean"] = growth.mean;
    if (row.method != "exact") {
      const auto from = crossing(row, rows[r / methods * methods], o.lengths);
      entry["beats_exact_from"] = from ? Json(*from) : Json();
    }
    json["rows"].push_back(entry);
  }
  return json;
}

void print_text(const BenchLongOptions& o, const std::vector<MethodRow>& rows) {
  print_out("1 x {} heads of {}, {}{}; window {}, {} projected rows, {} features\n", o.heads,
            o.head_size, o.dtype, o.causal ? ", causal" : "", o.window, o.length, o.features);
  if (o.common.device == "cpu") {
    print_out("target {}, {} threads\n", cpu_target(), num_threads());
  } else {
    print_out("on {}\n", o.common.device);
  }
  const std::size_t methods = rows.size() / 2;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (r % methods == 0) {
      print_out("\n{:<22}", rows[r].backward ? "forward + backward" : "forward");
      for (const std::int64_t length : o.lengths) print_out("{:>11}", length);
      print_out("   per doubling: mean, worst\n");
    }
    print_out("  {:<17}{:>3}", rows[r].method, "ms");
    for (const auto& cell : rows[r].cells) {
      print_out("{}", cell ? fmt::format("{:>11.2f}", cell->ms) : fmt::format("{:>11}", "-"));
    }
    const Growth growth = growth_of(rows[r], o.lengths);
    print_out("{:>11.2f}{:>9.2f}\n", growth.mean, growth.worst);
    print_out("  {:<17}{:>3}", "", "MB");
    for (const auto& cell : rows[r].cells) {
      print_out("{}", cell ? fmt::format("{:>11.1f}", static_cast<double>(cell->bytes) * 1e-6)
                           : fmt::format("{:>11}", "-"));
    }
    print_out("\n");
  }
  print_out("\n");
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].method == "exact") continue;
    const auto from = crossing(rows[r], rows[r / methods * methods], o.lengths);
    print_out("  {} ({}) {}\n", rows[r].method, rows[r].backward ? "forward + backward" : "forward",
              from ? fmt::format("beats exact attention from {} on", *from)
                   : std::string("does not beat exact attention at these lengths"));
  }
}

// Time by length, forward and with backward side by side, and the memory of both.
std::string drawing_of(const BenchLongOptions& o, const std::vector<MethodRow>& rows) {
  const std::size_t methods = rows.size() / 2;
  std::vector<std::string> names;
  for (std::size_t r = 0; r < methods; ++r) names.push_back(rows[r].method);
  std::vector<study::Plot> plots;
  const auto add = [&](bool backward, const char* title, const char* unit, auto value) {
    study::Plot plot;
    plot.id = fmt::format("plot{}", plots.size());
    plot.title = fmt::format("{}, {} heads of {}, {}{} on {}", title, o.heads, o.head_size, o.dtype,
                             o.causal ? ", causal" : "", o.common.device);
    plot.x_label = "length S";
    plot.y_label = unit;
    plot.x_ticks.assign(o.lengths.begin(), o.lengths.end());
    plot.y = study::PlotScale::logarithmic;
    for (std::size_t r = 0; r < methods; ++r) {
      const MethodRow& row = rows[r + (backward ? methods : 0)];
      study::PlotSeries series{study::kStyles[r % std::size(study::kStyles)].style, {}, {}, {}};
      for (std::size_t i = 0; i < row.cells.size(); ++i) {
        if (!row.cells[i]) continue;
        const double x = static_cast<double>(o.lengths[i]), y = value(*row.cells[i]);
        series.points.push_back(
            {x, y, 0, fmt::format("{} at {}: {:.4g} {}", row.method, x, y, unit)});
      }
      series.line = series.points;
      plot.series.push_back(std::move(series));
    }
    plots.push_back(std::move(plot));
  };
  const auto ms = [](const Cell& cell) { return cell.ms; };
  add(false, "forward", "ms", ms);
  add(true, "forward and backward", "ms", ms);
  add(true, "memory, forward and backward", "MB",
      [](const Cell& cell) { return static_cast<double>(cell.bytes) * 1e-6; });
  return study::drawing(names, plots);
}

void run_bench_long(const BenchLongOptions& o) {
  o.common.apply();
  if (!o.target.empty()) set_cpu_target(o.target);
  const std::vector<MethodRow> rows = run_all(o);
  if (!o.out.empty()) write_file_atomically(o.out, drawing_of(o, rows));
  if (o.common.json) {
    print_json(report(o, rows));
  } else {
    print_text(o, rows);
  }
}

}  // namespace

void add_bench_long(CLI::App& bench, Job& job) {
  CLI::App* command = bench.add_subcommand(
      "long", "Time exact attention, Longformer, Linformer and Performer by length");
  command->footer(examples("qkv bench long --lengths 1024,2048,4096,8192 --out long.svg",
                           "qkv bench long --causal --features 128 --dtype bf16 --json"));
  const auto o = std::make_shared<BenchLongOptions>();
  command->add_option("--lengths", o->lengths, "Lengths S, comma-separated; best doubled each time")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(16, 1 << 24))
      ->capture_default_str();
  command->add_option("--heads", o->heads, "Heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--head-size", o->head_size, "Their size")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command->add_option("--window", o->window, "Longformer: a query sees half of it on each side")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command->add_option("--length", o->length, "Linformer: rows keys and values are projected to")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--features", o->features, "Performer: random features")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_flag("--causal", o->causal, "Causal attention, which a Linformer cannot do");
  command->add_option("--dtype", o->dtype, "Of queries, keys and values")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--limit", o->limit, "Leave exact attention out where a run takes longer")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_option("--out", o->out, "Draw time and memory by length in this file")
      ->type_name("FILE.svg");
  add_target(*command, o->target);
  o->common.add_to(*command);
  command->callback([&job, o] { job = [o] { run_bench_long(*o); }; });
}

}  // namespace qkv::cli

// qkv quantize: a model folder with int8 weights.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "io/file.h"
#include "output.h"
#include "progress.h"
#include "qkv/checkpoint.h"
#include "qkv/models/model.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

struct QuantizeOptions {
  Common common;
  std::string from, to, dtype = "i8";
  std::int64_t group = 0;
};

struct Rounded {
  std::string name;
  Shape shape;
  double error = 0;  // |w - rounded w| / |w|, both as vectors
};

double relative_error(const Tensor& before, const nn::Weight& after, int axis) {
  const auto rows = [&](const Tensor& x) { return axis == 1 ? x : transpose(x, 0, 1); };
  const Tensor wide = dequantize(after.quantized(axis));
  const Tensor difference = subtract(contiguous(rows(to(before, DType::f32))), wide);
  const auto square = [](const Tensor& x) {
    double sum = 0;
    for (const float value : x.to_vector<float>()) sum += double{value} * value;
    return sum;
  };
  const double whole = square(wide);
  return whole > 0 ? std::sqrt(square(difference) / whole) : 0;
}

// Every matrix and table of the model becomes int8; what was done to each, in the order of visit.
std::vector<Rounded> round_weights(Model& model, std::int64_t group) {
  int count = 0;
  const auto ignore = [](const std::string&, Tensor&, const Shape&) {};
  model.visit(
      nn::Visitor(ignore, [&](const std::string&, nn::Weight&, const Shape&, int) { ++count; }));
  std::vector<Rounded> all;
  Progress progress("quantizing");
  model.visit(nn::Visitor(
      ignore, [&](const std::string& name, nn::Weight& weight, const Shape& shape, int axis) {
        check(!weight.is_quantized(), "quantize: {} is int8 already", name);
        const nn::Weight rounded = nn::quantize(weight, group, axis);
        all.push_back({name, shape, relative_error(weight, rounded, axis)});
        drop_pages(weight);
        weight = rounded;
        progress.update(static_cast<int>(all.size()), count);
      }));
  return all;
}

// What lies beside the weights: the tokenizer, the defaults of generation.
std::vector<std::string> copy_others(const fs::path& from, const fs::path& to) {
  constexpr std::uint64_t kLargest = std::uint64_t{256} << 20;
  static constexpr const char* kWeights[] = {".safetensors", ".bin",        ".pt",        ".pth",
                                             ".h5",          ".msgpack",    ".onnx",      ".gguf",
                                             ".ot",          ".index.json", "config.json"};
  std::vector<std::string> copied;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_weight = name != "tokenizer_config.json" && name != "generation_config.json" &&
                           std::any_of(std::begin(kWeights), std::end(kWeights),
                                       [&](const char* end) { return name.ends_with(end); });
    if (is_weight || !entry.is_regular_file() || entry.file_size() > kLargest) continue;
    try {
      write_file_atomically((to / name).string(), read_file(entry.path().string(), kLargest));
      copied.push_back(name);
    } catch (const Error& failure) {  // the weights are written; a picture need not be
      print_err("qkv: warning: not copied: {}\n", failure.what());
    }
  }
  check(!error, "quantize: {} cannot be listed: {}", from.string(), error.message());
  std::sort(copied.begin(), copied.end());
  return copied;
}

std::uint64_t bytes_of(const std::string& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  std::uint64_t bytes = 0;
  for (const std::string& name : checkpoint.names()) bytes += checkpoint.info(name).bytes;
  return bytes;
}

void run_quantize(const QuantizeOptions& o) {
  o.common.apply();
  std::error_code error;
  check(!fs::equivalent(o.from, o.to, error), "quantize: {} and {} are the same folder", o.from,
        o.to);
  const std::unique_ptr<Model> model = load_model(o.from);
  const std::vector<Rounded> rounded = round_weights(*model, o.group);
  model->tie();
  save_model(*model, o.to);
  const std::vector<std::string> copied = copy_others(o.from, o.to);
  const std::uint64_t before = bytes_of(o.from), after = bytes_of(o.to);

  if (o.common.json) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const Rounded& r : rounded) {
      const auto extents = r.shape.extents();
      tensors.push_back({{"name", r.name},
                         {"shape", std::vector(extents.begin(), extents.end())},
                         {"relative_error", r.error}});
    }
    print_json({{"from", o.from},
                {"to", o.to},
                {"dtype", o.dtype},
                {"group", o.group},
                {"bytes_before", before},
                {"bytes_after", after},
                {"tensors", tensors},
                {"copied", copied}});
    return;
  }
  print_out("{} matrices and tables, a scale per {}\n", rounded.size(),
            o.group == 0 ? "row" : fmt::format("{} inputs", o.group));
  print_out("  {:.1f} MB -> {:.1f} MB\n", static_cast<double>(before) * 1e-6,
            static_cast<double>(after) * 1e-6);
  const auto worst =
      std::max_element(rounded.begin(), rounded.end(),
                       [](const auto& a, const auto& b) { return a.error < b.error; });
  if (worst != rounded.end()) {
    print_out("  largest relative error {:.2e}, of {}\n", worst->error, worst->name);
  }
  print_out("  copied: {}\n",
            copied.empty() ? "nothing" : fmt::format("{}", fmt::join(copied, ", ")));
}

}  // namespace

void add_quantize(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("quantize", "Write a model folder with int8 weights");
  command->footer(examples("qkv quantize path/to/model path/to/model-i8",
                           "qkv quantize path/to/model out --group 64 --json"));
  const auto o = std::make_shared<QuantizeOptions>();
  o->common.add_to(*command);
  command->add_option("from", o->from, "A model folder")->required()->type_name("DIR");
  command->add_option("to", o->to, "The folder to write; made where it is missing")
      ->required()
      ->type_name("OUT");
  command->add_option("--dtype", o->dtype, "Of the weights: i8")
      ->check(CLI::IsMember({"i8"}))
      ->capture_default_str();
  command->add_option("--group", o->group, "Inputs that share a scale: 32, 64, 128; 0 = a row")
      ->check(CLI::IsMember({0, 32, 64, 128}))
      ->capture_default_str();
  command->callback([&job, o] { job = [o] { run_quantize(*o); }; });
}

}  // namespace qkv::cli

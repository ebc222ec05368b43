// qkv inspect: what is in a checkpoint, read from its headers alone.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "io/json.h"
#include "io/shown.h"
#include "output.h"
#include "qkv/checkpoint.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

struct InspectOptions {
  Common common;
  std::string path, filter, sort = "name";
};

struct TensorRow {
  std::string name;
  TensorInfo info;
};

struct Total {
  std::uint64_t tensors = 0, parameters = 0, bytes = 0;

  void add(const TensorInfo& info) {
    ++tensors;
    parameters += static_cast<std::uint64_t>(info.shape.numel());
    bytes += info.bytes;
  }
};

// What a config.json beside the tensors calls the model.
struct ConfiguredModel {
  std::string type;
  std::vector<std::string> architectures;
};

struct Inspection {
  std::vector<std::string> files;
  std::vector<TensorRow> rows;  // those that the filter lets through
  Total total;                  // of the rows
  std::map<std::string, Total> by_dtype;
  std::size_t tensors_in_all = 0;
  std::map<std::string, std::string> metadata;
  ConfiguredModel model;
};

// A config that cannot be read takes nothing away from the tensors: a word about it and on.
ConfiguredModel read_model(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  try {
    const Config config = Config::read(path.string());
    return {config.text_or("model_type", ""), config.texts("architectures")};
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {
    print_err("qkv: warning: {}\n", error.what());
    return {};
  }
}

Inspection inspect(const InspectOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(options.path);
  Inspection result;
  result.files = checkpoint.files();
  result.metadata = checkpoint.metadata();
  result.model = read_model(std::filesystem::path(result.files.at(0)).parent_path().string());
  for (const std::string& name : checkpoint.names()) {
    ++result.tensors_in_all;
    if (name.find(options.filter) == std::string::npos) continue;
    result.rows.push_back({name, checkpoint.info(name)});
    result.total.add(result.rows.back().info);
    result.by_dtype[result.rows.back().info.stored_dtype].add(result.rows.back().info);
  }
  if (options.sort == "size") {  // names() are sorted, and stay so among equals
    std::stable_sort(
        result.rows.begin(), result.rows.end(),
        [](const TensorRow& a, const TensorRow& b) { return a.info.bytes > b.info.bytes; });
  }
  return result;
}

ordered_json to_json(const Total& total) {
  return {{"tensors", total.tensors}, {"parameters", total.parameters}, {"bytes", total.bytes}};
}

ordered_json report(const InspectOptions& options, const Inspection& result) {
  ordered_json tensors = ordered_json::array();
  for (const auto& [name, info] : result.rows) {
    const auto extents = info.shape.extents();
    tensors.push_back({{"name", name},
                       {"dtype", info.stored_dtype},
                       {"shape", std::vector(extents.begin(), extents.end())},
                       {"bytes", info.bytes}});
  }
  ordered_json dtypes = ordered_json::object();
  for (const auto& [dtype, total] : result.by_dtype) dtypes[dtype] = to_json(total);
  ordered_json total = to_json(result.total);
  total["dtypes"] = std::move(dtypes);
  const ConfiguredModel& model = result.model;
  return {{"path", options.path},
          {"files", result.files},
          {"model_type", model.type.empty() ? ordered_json() : ordered_json(model.type)},
          {"architectures", model.architectures},
          {"metadata", result.metadata},
          {"total", std::move(total)},
          {"tensors", std::move(tensors)}};
}

std::string count(std::uint64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

// 1 234 567 890 bytes are easier compared as "1.15 GiB".
std::string readable_bytes(std::uint64_t bytes) {
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return count(bytes, "byte");
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return fmt::format("{} bytes ({:.4g} {})", bytes, value, units[unit]);
}

void print_table(const std::vector<TensorRow>& rows) {
  std::size_t name_width = 4, dtype_width = 5, shape_width = 5;
  for (const auto& [name, info] : rows) {
    name_width = std::max(name_width, shown_name(name).size());
    dtype_width = std::max(dtype_width, info.stored_dtype.size());
    shape_width = std::max(shape_width, to_string(info.shape).size());
  }
  const auto line = [&](const auto&... cells) {
    print_out("{:<{}}  {:<{}}  {:<{}}  {:>14}\n", cells...);
  };
  line("name", name_width, "dtype", dtype_width, "shape", shape_width, "bytes");
  for (const auto& [name, info] : rows) {
    line(shown_name(name), name_width, info.stored_dtype, dtype_width, to_string(info.shape),
         shape_width, info.bytes);
  }
  print_out("\n");
}

void print_text(const InspectOptions& options, const Inspection& result) {
  if (!result.rows.empty()) print_table(result.rows);
  const Total& total = result.total;
  const std::string filtered =
      options.filter.empty() ? "" : fmt::format(" of {}", result.tensors_in_all);
  print_out("{}{} tensor{}, {}, {}", total.tensors, filtered, total.tensors == 1 ? "" : "s",
            count(total.parameters, "parameter"), readable_bytes(total.bytes));
  print_out(", in {}\n", count(result.files.size(), "file"));
  for (const auto& [dtype, part] : result.by_dtype) {
    print_out("  {:<12}{}, {}, {}\n", dtype, count(part.tensors, "tensor"),
              count(part.parameters, "parameter"), readable_bytes(part.bytes));
  }
  const ConfiguredModel& model = result.model;
  if (!model.type.empty()) print_out("model_type: {}\n", shown_name(model.type));
  if (!model.architectures.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : model.architectures) names.push_back(shown_name(name));
    print_out("architectures: {}\n", fmt::join(names, ", "));
  }
  for (const auto& [key, value] : result.metadata) {
    print_out("metadata {}: {}\n", shown_name(key), shown_name(value));
  }
}

void run_inspect(const InspectOptions& options) {
  options.common.apply();
  const Inspection result = inspect(options);
  if (options.common.json) {
    print_json(report(options, result));
  } else {
    print_text(options, result);
  }
}

}  // namespace

void add_inspect(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("inspect", "List the tensors of a checkpoint without loading it");
  command->footer(examples("qkv inspect model.safetensors",
                           "qkv inspect path/to/model --sort size --filter attn --json"));
  const auto options = std::make_shared<InspectOptions>();
  command
      ->add_option("path", options->path,
                   "A .safetensors file, an index.json of several, or a folder with either")
      ->required()
      ->type_name("FILE");
  command->add_option("--sort", options->sort, "Order of the tensors: name or size (largest first)")
      ->check(CLI::IsMember({"name", "size"}))
      ->capture_default_str();
  command->add_option("--filter", options->filter, "Only tensors whose name contains this");
  options->common.add_to(*command);
  command->callback([&job, options] { job = [options] { run_inspect(*options); }; });
}

}  // namespace qkv::cli

#include "train/run_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/check.h"
#include "io/checksum.h"
#include "io/shown.h"
#include "text/pipeline.h"

namespace qkv {
namespace {

using Json = nlohmann::ordered_json;

std::string absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::absolute(path, error);
  return error ? path : found.lexically_normal().string();
}

Json files_json(const std::vector<DataFile>& files) {
  Json list = Json::array();
  for (const DataFile& file : files) {
    Json entry{{"path", absolute(file.path)}};
    if (!file.prefix.empty()) entry["prefix"] = file.prefix;
    list.push_back(std::move(entry));
  }
  return list;
}

Json model_json(const TrainConfig& c) {
  Json config = Json::parse(c.model_config, nullptr, false);
  if (config.is_object()) return config;
  const std::vector<std::string> presets = model_presets();
  const bool is_preset = std::find(presets.begin(), presets.end(), c.model) != presets.end();
  return is_preset ? c.model : absolute(c.model);
}

Json data_json(const TrainConfig& c) {
  const DataOptions& d = c.data;
  Json json{{"train", files_json(d.files)}};
  if (!c.valid.empty()) json["valid"] = files_json(c.valid);
  json.update({{"source_column", d.source_column},
               {"target_column", d.target_column},
               {"prefix_rate", d.prefix_rate},
               {"max_source", d.max_source},
               {"max_target", d.max_target},
               {"documents", to_string(d.documents)},
               {"block", d.block},
               {"mask_rate", d.mask_rate},
               {"batch_tokens", d.batch_tokens}});
  if (!d.cache.empty()) json["cache"] = absolute(d.cache);
  return json;
}

Json optimizer_json(const OptimizerOptions& o) {
  return {{"rule", to_string(o.rule)}, {"lr", o.lr},   {"beta1", o.beta1},
          {"beta2", o.beta2},          {"eps", o.eps}, {"weight_decay", o.weight_decay},
          {"clip_norm", o.clip_norm},  {"ema", o.ema}};
}

Json config_json(const TrainConfig& c) {
  Json json{{"task", to_string(c.data.task)}, {"model", model_json(c)}};
  if (!c.tokenizer.empty()) json["tokenizer"] = absolute(c.tokenizer);
  json["data"] = data_json(c);
  json["optimizer"] = optimizer_json(c.optimizer);
  json["schedule"] = {{"kind", to_string(c.schedule.kind)},
                      {"warmup", c.schedule.warmup},
                      {"floor", c.schedule.floor}};
  json.update({{"steps", c.steps},
               {"epochs", c.epochs},
               {"accumulate", c.accumulate},
               {"label_smoothing", c.label_smoothing},
               {"z_loss", c.z_loss},
               {"dtype", to_string(c.dtype)},
               {"device", c.device.type == DeviceType::cuda ? "cuda" : "cpu"},
               {"seed", c.seed},
               {"init", c.xavier ? "xavier" : "normal"},
               {"deviation", c.deviation},
               {"out", "."},
               {"log_every", c.log_every},
               {"save_every", c.save_every},
               {"evaluate_every", c.evaluate_every},
               {"keep", c.keep},
               {"patience", c.patience},
               {"evaluate_examples", c.evaluate_examples},
               {"bleu", c.measure_bleu},
               {"samples", c.samples},
               {"health", c.health}});
  json["watch"] = {{"max_logit", c.watch.max_logit},
                   {"min_entropy", c.watch.min_entropy},
                   {"growth", c.watch.growth},
                   {"clip", c.watch.clip}};
  return json;
}

// Bytes that are no UTF-8, of a path, are no reason not to train.
std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void add_values(const Json& json, const std::string& before, ConfigValues& values) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) {
      add_values(value, before + key + ".", values);
    } else {
      values[before + key] = json_text(value, -1);
    }
  }
}

// What a run can do with otherwise when it is taken up. A name with a dot at its end stands for all
// keys that begin so.
constexpr std::string_view kMayChange[] = {
    "optimizer.lr", "schedule.", "steps",          "epochs",  "device", "log_every", "save_every",
    "keep",         "patience",  "evaluate_every", "samples", "health", "watch."};

bool may_change(const std::string& key) {
  return std::ranges::any_of(kMayChange, [&](std::string_view allowed) {
    return allowed.ends_with('.') ? key.starts_with(allowed) : key == allowed;
  });
}

std::vector<RunIdentity::File> files_of(const Dataset& data) {
  std::vector<RunIdentity::File> files;
  for (const DataFile& file : data.options().files) {
    files.push_back({file.path, file.prefix, checksum_text(data.fingerprint(files.size()))});
  }
  return files;
}

void compare_values(const ConfigValues& before, const ConfigValues& now, const std::string& where,
                    std::vector<RunChange>& changes) {
  for (const auto& [key, value] : now) {
    const auto old = before.find(key);
    if (old == before.end() || old->second == value) continue;
    changes.push_back({.text = fmt::format("{}{} was {}, now {}", where, key,
                                           shown_name(old->second), shown_name(value)),
                       .allowed = where.empty() && may_change(key),
                       .affects_evaluation = key == "bleu" || key == "evaluate_examples"});
  }
}

void compare_files(const std::vector<RunIdentity::File>& before,
                   const std::vector<RunIdentity::File>& now, const char* key,
                   std::vector<RunChange>& changes) {
  const bool is_valid = std::string_view(key) == "data.valid";
  if (before.size() != now.size()) {
    changes.push_back(
        {.text = fmt::format("{} had {} files, now {}", key, before.size(), now.size()),
         .allowed = is_valid && before.empty(),
         .affects_evaluation = is_valid});
    return;
  }
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (before[i].prefix != now[i].prefix) {
      changes.push_back(
          {.text = fmt::format("the prefix of {} in {} was '{}', now '{}'", now[i].path, key,
                               shown_name(before[i].prefix), shown_name(now[i].prefix)),
           .affects_evaluation = is_valid});
    }
    if (before[i].tokens == now[i].tokens) continue;
    const std::string was =
        before[i].path == now[i].path ? std::string() : " (" + shown_name(before[i].path) + ")";
    changes.push_back(
        {.text = fmt::format("{}: {} does not give the tokens it gave{}", key, now[i].path, was),
         .affects_evaluation = is_valid});
  }
}

}  // namespace

std::string config_text(const TrainConfig& config) {
  return json_text(config_json(config), 2) + "\n";
}

ConfigValues config_values(const TrainConfig& config) {
  Json json = config_json(config);
  for (const char* key : {"model", "tokenizer", "out"}) json.erase(key);
  for (const char* key : {"train", "valid", "cache"}) json["data"].erase(key);
  ConfigValues values;
  add_values(json, "", values);
  return values;
}

ConfigValues json_values(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  ConfigValues values;
  if (json.is_object()) add_values(json, "", values);
  return values;
}

RunIdentity identity_of(const TrainConfig& config, const Tokenizer& tokenizer, const Dataset& data,
                        const Dataset* valid) {
  RunIdentity identity{.config = config_values(config),
                       .tokenizer = checksum_text(tokenizer.pipeline().fingerprint()),
                       .train = files_of(data)};
  if (valid != nullptr) identity.valid = files_of(*valid);
  return identity;
}

std::vector<RunChange> changes_between(const RunIdentity& before, const RunIdentity& now) {
  std::vector<RunChange> changes;
  // A key that only one of two versions knows has the value that the other had without it.
  compare_values(before.config, now.config, "", changes);
  if (before.tokenizer.empty()) return changes;  // of a version that kept the config alone
  if (before.tokenizer != now.tokenizer) {
    changes.push_back({.text = "the tokenizer is another", .affects_evaluation = true});
  }
  compare_files(before.train, now.train, "data.train", changes);
  compare_files(before.valid, now.valid, "data.valid", changes);
  return changes;
}

std::vector<RunChange> changes_of_model(const std::string& before, const std::string& now) {
  ConfigValues old = json_values(before), values = json_values(now);
  // How weights were stored that were loaded; a run's own are not stored so.
  const auto is_storage = [](const auto& entry) {
    return entry.first.starts_with("quantization_config");
  };
  std::erase_if(old, is_storage);
  std::erase_if(values, is_storage);
  for (const auto& [key, value] : old) values.try_emplace(key, "absent");
  for (const auto& [key, value] : values) old.try_emplace(key, "absent");
  std::vector<RunChange> changes;
  compare_values(old, values, "model.", changes);
  return changes;
}

}  // namespace qkv

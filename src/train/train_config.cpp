// The config of a run: JSON, with every key known and every number in its range.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/file.h"
#include "io/json.h"
#include "qkv/train.h"

namespace qkv {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t kConfigBytes = 1 << 20;
constexpr std::int64_t kMost = std::int64_t{1} << 40;

void allow(const Config& config, const std::vector<std::string>& keys) {
  for (const std::string& key : config.keys()) {
    const bool known = std::find(keys.begin(), keys.end(), key) != keys.end();
    check(known, "{} is no key here; there are {}", config.where(key), fmt::join(keys, ", "));
  }
}

// "a.b=value" into the JSON: a number, true, a list, or else a text.
void apply_change(ordered_json& json, const std::string& change) {
  const std::size_t equals = change.find('=');
  check(equals != std::string::npos && equals > 0,
        "'{}' changes nothing: write key=value, as in optimizer.lr=0.001", change);
  const std::string value = change.substr(equals + 1);
  ordered_json* at = &json;
  std::string keys = change.substr(0, equals);
  for (std::size_t dot; (dot = keys.find('.')) != std::string::npos; keys = keys.substr(dot + 1)) {
    at = &(*at)[keys.substr(0, dot)];
    check(at->is_null() || at->is_object(), "'{}': {} is not an object", change,
          keys.substr(0, dot));
  }
  ordered_json parsed = ordered_json::parse(value, nullptr, false);
  (*at)[keys] = parsed.is_discarded() ? ordered_json(value) : std::move(parsed);
}

// A file may be written as its path alone.
void write_out_files(ordered_json& json, const char* key) {
  if (!json.contains("data") || !json["data"].is_object() || !json["data"].contains(key)) return;
  ordered_json& files = json["data"][key];
  if (files.is_string()) files = ordered_json::array({files});
  if (!files.is_array()) return;
  for (ordered_json& file : files) {
    if (file.is_string()) file = ordered_json{{"path", file.get<std::string>()}};
  }
}

class Reader {
 public:
  Reader(Config config, std::filesystem::path folder)
      : config_(std::move(config)), folder_(std::move(folder)) {}

  std::string path(const std::string& written) const {
    return written.empty() ? "" : (folder_ / written).lexically_normal().string();
  }
  std::vector<DataFile> files(const Config& data, const char* key) const {
    std::vector<DataFile> list;
    for (const Config& file : data.objects(key)) {
      allow(file, {"path", "prefix"});
      list.push_back({path(file.text("path")), file.text_or("prefix", "")});
    }
    return list;
  }

  void data(TrainConfig& t) const {
    const Config c = config_.object("data");
    allow(c, {"train", "valid", "source_column", "target_column", "prefix_rate", "max_source",
              "max_target", "documents", "block", "mask_rate", "batch_tokens", "cache"});
    DataOptions& d = t.data;
    d.task = task_from_string(config_.text("task"));
    d.files = files(c, "train");
    t.valid = files(c, "valid");
    check(!d.files.empty(), "{} names no file", c.where("train"));
    d.source_column = static_cast<int>(c.integer_or("source_column", 0, 0, 1000));
    d.target_column = static_cast<int>(c.integer_or("target_column", 1, 0, 1000));
    d.prefix_rate = c.number_or("prefix_rate", d.prefix_rate, 0, 1);
    d.max_source = c.integer_or("max_source", d.max_source, 1, kMost);
    d.max_target = c.integer_or("max_target", d.max_target, 1, kMost);
    d.documents = documents_from_string(c.text_or("documents", to_string(d.documents)));
    d.block = c.integer_or("block", d.block, 2, kMost);
    d.mask_rate = c.number_or("mask_rate", d.mask_rate, 0, 1);
    d.batch_tokens = c.integer_or("batch_tokens", d.batch_tokens, 1, kMost);
    d.cache = path(c.text_or("cache", ""));
  }

  void optimizer(TrainConfig& t) const {
    if (!config_.has("optimizer")) return;
    const Config c = config_.object("optimizer");
    allow(c, {"rule", "lr", "beta1", "beta2", "eps", "weight_decay", "clip_norm", "ema"});
    OptimizerOptions& o = t.optimizer;
    o.rule = optimizer_rule_from_string(c.text_or("rule", "adamw"));
    o.lr = c.number_or("lr", o.lr, 0, 1e3);
    o.beta1 = c.number_or("beta1", o.beta1, 0, 0.999999);
    o.beta2 = c.number_or("beta2", o.rule == OptimizerRule::lion ? 0.99 : o.beta2, 0, 0.999999999);
    o.eps = c.number_or("eps", o.eps, 0, 1);
    o.weight_decay = c.number_or("weight_decay", o.weight_decay, 0, 1e3);
    o.clip_norm = c.number_or("clip_norm", 1, 0, 1e9);
    o.ema = c.number_or("ema", 0, 0, 0.999999999);
  }

  void schedule(TrainConfig& t) const {
    if (!config_.has("schedule")) return;
    const Config c = config_.object("schedule");
    allow(c, {"kind", "warmup", "floor"});
    t.schedule.kind = schedule_from_string(c.text_or("kind", to_string(t.schedule.kind)));
    t.schedule.warmup = c.integer_or("warmup", 0, 0, kMost);
    t.schedule.floor = c.number_or("floor", 0, 0, 1);
  }

  void watch(TrainConfig& t) const {
    if (!config_.has("watch")) return;
    const Config c = config_.object("watch");
    allow(c, {"max_logit", "min_entropy", "growth", "clip"});
    WatchOptions& w = t.watch;
    w.max_logit = c.number_or("max_logit", w.max_logit, 0, 1e30);
    w.min_entropy = c.number_or("min_entropy", w.min_entropy, 0, 1);
    w.growth = c.number_or("growth", w.growth, 0, 1e30);
    w.clip = c.number_or("clip", w.clip, 0, 1e30);
  }

  void rest(TrainConfig& t) const {
    const Config& c = config_;
    t.tokenizer = path(c.text_or("tokenizer", ""));
    t.steps = c.integer_or("steps", 0, 0, kMost);
    t.epochs = c.number_or("epochs", 1, 1e-6, 1e9);
    t.accumulate = static_cast<int>(c.integer_or("accumulate", 1, 1, 1 << 20));
    t.label_smoothing = c.number_or("label_smoothing", 0, 0, 0.999);
    t.z_loss = c.number_or("z_loss", 0, 0, 1e3);
    t.dtype = dtype_from_string(c.text_or("dtype", "f32"));
    check(t.dtype == DType::f32 || t.dtype == DType::bf16, "{} must be f32 or bf16, got {}",
          c.where("dtype"), t.dtype);
    const std::string device = c.text_or("device", "cpu");
    check(device == "cpu" || device == "cuda", "{} must be cpu or cuda, got '{}'",
          c.where("device"), device);
    t.device = {device == "cuda" ? DeviceType::cuda : DeviceType::cpu, 0};
    t.seed = static_cast<std::uint64_t>(
        c.integer_or("seed", 0, 0, std::numeric_limits<std::int64_t>::max()));
    const std::string draw = c.text_or("init", "normal");
    check(draw == "normal" || draw == "xavier", "{} must be normal or xavier, got '{}'",
          c.where("init"), draw);
    t.xavier = draw == "xavier";
    t.deviation = c.number_or("deviation", t.deviation, 0, 1e3);
    t.out = path(c.text_or("out", ""));
    t.log_every = c.integer_or("log_every", t.log_every, 1, kMost);
    t.save_every = c.integer_or("save_every", t.save_every, 1, kMost);
    t.evaluate_every = c.integer_or("evaluate_every", t.evaluate_every, 1, kMost);
    t.keep = c.integer_or("keep", t.keep, 1, 1 << 20);
    t.patience = c.integer_or("patience", 0, 0, kMost);
    t.evaluate_examples = c.integer_or("evaluate_examples", t.evaluate_examples, 0, kMost);
    t.measure_bleu = c.flag_or("bleu", true);
    t.samples = c.texts("samples");
    t.health = c.flag_or("health", true);
  }

 private:
  Config config_;
  std::filesystem::path folder_;
};

}  // namespace

TrainConfig read_train_config(const std::string& path, const std::vector<std::string>& changes) {
  ordered_json json = ordered_json::parse(read_file(path, kConfigBytes), nullptr, false, true);
  check(json.is_object(), "{}: is not a JSON object", path);
  for (const std::string& change : changes) apply_change(json, change);
  write_out_files(json, "train");
  write_out_files(json, "valid");
  TrainConfig t;
  if (json.contains("model") && json["model"].is_object()) {
    t.model_config = json["model"].dump(2);
    json["model"] = "";
  }
  const Config config = Config::parse(json.dump(), path);
  allow(config, {"task",
                 "model",
                 "tokenizer",
                 "data",
                 "optimizer",
                 "schedule",
                 "steps",
                 "epochs",
                 "accumulate",
                 "label_smoothing",
                 "z_loss",
                 "dtype",
                 "device",
                 "seed",
                 "init",
                 "deviation",
                 "out",
                 "log_every",
                 "save_every",
                 "evaluate_every",
                 "keep",
                 "patience",
                 "evaluate_examples",
                 "bleu",
                 "samples",
                 "health",
                 "watch"});
  const Reader reader(config, std::filesystem::path(path).parent_path());
  const std::string model = config.text_or("model", "");
  const std::vector<std::string> presets = model_presets();
  const bool is_preset = std::find(presets.begin(), presets.end(), model) != presets.end();
  t.model = is_preset ? model : reader.path(model);
  check(!t.model.empty() || !t.model_config.empty(),
        "{}: a folder with a checkpoint, a config.json or one itself is needed",
        config.where("model"));
  reader.data(t);
  reader.optimizer(t);
  reader.schedule(t);
  reader.watch(t);
  reader.rest(t);
  return t;
}

}  // namespace qkv

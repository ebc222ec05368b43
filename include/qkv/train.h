// Training: a config becomes a run in a folder, which can be stopped at any moment and taken up
// again to the same bits.
//
//   qkv::TrainConfig config = qkv::read_train_config("translate.json");
//   qkv::Trainer trainer(config, {.on_step = [](const qkv::StepReport& r) { ... }});
//   trainer.run();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/data.h"
#include "qkv/models/model.h"
#include "qkv/optim.h"

namespace qkv {

// How the learning rate goes on after it has risen.
enum class ScheduleKind : std::uint8_t { constant, linear, cosine, inverse_sqrt };
std::string to_string(ScheduleKind kind);
ScheduleKind schedule_from_string(const std::string& name);  // Error lists the names
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::cosine;
  std::int64_t warmup = 0;  // steps in which it rises from 0
  double floor = 0;         // of linear and cosine: the share of the peak that is left at the end
};
// The share of the peak rate at `step` (the first is 1) of `steps`.
double schedule_factor(const ScheduleOptions& schedule, std::int64_t step, std::int64_t steps);

// When to warn about a head, and what to do about it; 0 turns a rule off.
struct WatchOptions {
  double max_logit = 100;     // warn above it: softmax saturates, gradients vanish
  double min_entropy = 0.01;  // warn where the mean of H / log(keys) falls below it
  double growth = 4;  // warn where max_logit has grown by this factor since the last warning
  // QK-clip: W_Q and W_K of a head whose largest logit passes it are scaled down until it would be
  // this one.
  double clip = 0;
};

struct TrainConfig {
  std::string model;         // a folder with a checkpoint, a config.json, or one of model_presets()
  std::string model_config;  // or the text of a config.json; the tokenizer gives the vocabulary
  std::string tokenizer;     // a folder or file; empty: the model's folder
  DataOptions data;
  std::vector<DataFile> valid{};  // to evaluate on; empty: no evaluation

  OptimizerOptions optimizer{};
  ScheduleOptions schedule{};
  std::int64_t steps = 0;  // 0: as many as `epochs` take
  double epochs = 1;
  int accumulate = 1;  // batches whose gradients make one step
  double label_smoothing = 0, z_loss = 0;
  DType dtype = DType::f32;  // bf16: weights and residual stream, with f32 masters
  Device device{};
  std::uint64_t seed = 0;
  bool xavier = false;      // draw matrices by their sizes, tables by their width; else normal
  double deviation = 0.02;  // of the normal draw

  std::string out;  // the folder of the run
  std::int64_t log_every = 10;
  std::int64_t save_every = 500;
  std::int64_t evaluate_every = 500;
  std::int64_t keep = 2;      // checkpoints
  std::int64_t patience = 0;  // evaluations without a better one before the run ends; 0: no end
  std::int64_t evaluate_examples = 1000;  // at most; 0: all
  bool measure_bleu = true;               // of pairs: translate the validation sources and compare
  std::vector<std::string> samples{};     // texts to show the output for at each evaluation
  bool health = true;                     // report every head's scores at logged steps
  WatchOptions watch{};
};
// Reads a config (docs/training.md lists its keys). `changes` are "key.key=value", where value is
// JSON or a plain word. Paths are relative to the config's folder. A key that nobody knows is an
// Error.
TrainConfig read_train_config(const std::string& path,
                              const std::vector<std::string>& changes = {});

// One head at one step, over the whole batch.
struct HeadHealth {
  std::string name;  // "encoder.0.self"
  int head = 0;
  double max_logit = 0, variance = 0;
  double entropy = 0;     // the mean of H / log(keys): 1 = uniform, 0 = one key
  double saturation = 0;  // the share of rows whose largest weight passes 0.99
  double q_grad_norm = 0, k_grad_norm = 0;
};

struct StepReport {
  std::int64_t step = 0, steps = 0;
  double epoch = 0;
  double loss = 0;  // the mean over tokens since the last report
  double lr = 0, gradient_norm = 0;
  double tokens_per_second = 0, seconds = 0, seconds_left = 0;
  std::vector<HeadHealth> health{};
  std::vector<std::string> warnings{};
};

struct Evaluation {
  std::int64_t step = 0;
  double loss = 0, perplexity = 0;
  double accuracy = 0;  // of the likeliest token, or class
  std::optional<double> bleu{};
  bool is_best = false;
  struct Sample {
    std::string source, output;
  };
  std::vector<Sample> samples{};
};

// What a run tells while it goes on. All may be empty.
struct TrainEvents {
  std::function<void(const std::string& what)> on_note{};  // one line
  std::function<void(std::int64_t done, std::int64_t total)> on_tokenising{};
  std::function<void(const StepReport& report)> on_step{};
  std::function<void(const Evaluation& evaluation)> on_evaluation{};
  std::function<bool()> should_stop{};  // asked after each step: true saves and returns
};

struct TrainResult {
  std::int64_t steps = 0;
  bool finished = false;  // false: stopped; run it again to go on
  std::string model;      // the folder of the finished model, or of the last checkpoint
  std::optional<Evaluation> best{};
};

class Trainer {
 public:
  // Makes or opens the run's folder and locks it: one that another process trains in is an Error,
  // and one that holds a run, unless `resume`. A run that is taken up must have the data, tokenizer
  // and config it began with, but for the keys that docs/training.md lists; an Error names what
  // differs, unless `force`. A newest checkpoint that is damaged is passed over, with a note.
  Trainer(TrainConfig config, TrainEvents events, bool resume = false, bool force = false);
  ~Trainer();

  // To the end, or until should_stop. Throws Error where a loss or gradient is not finite: it names
  // the step and the layer and head where that began; the last checkpoint is as it was. A
  // checkpoint is never made of weights that are not finite.
  TrainResult run();

  const Model& model() const;
  const Tokenizer& tokenizer() const;

 private:
  struct Run;
  std::unique_ptr<Run> run_;
};

}  // namespace qkv

// The loop of a run: step, tell, judge, save.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/backend.h"
#include "core/check.h"
#include "core/philox.h"
#include "io/file.h"
#include "qkv/ops.h"
#include "qkv/train.h"
#include "train/evaluate.h"
#include "train/fault.h"
#include "train/health.h"
#include "train/metrics.h"
#include "train/resume.h"
#include "train/run_config.h"
#include "train/run_folder.h"
#include "train/setup.h"

namespace qkv {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Dataset make_dataset(const TrainConfig& config, const TrainEvents& events,
                     const Tokenizer& tokenizer, const ModelInfo& info) {
  DataOptions options = config.data;
  options.seed = config.seed;
  options.progress = events.on_tokenising;
  if (options.cache.empty()) options.cache = (std::filesystem::path(config.out) / "cache").string();
  return Dataset(options, tokenizer, info);
}

std::optional<Dataset> make_valid(const TrainConfig& config, const Tokenizer& tokenizer,
                                  const ModelInfo& info) {
  if (config.valid.empty()) return {};
  DataOptions options = config.data;
  options.files = config.valid;
  options.shuffle = false;
  options.prefix_rate = 0;
  constexpr std::int64_t kTokens = 4096;  // small batches, so that some of them stand for all
  options.batch_tokens = std::min(options.batch_tokens, kTokens);
  options.cache = "";
  return Dataset(options, tokenizer, info);
}

float number_of(const Tensor& x) { return to(x, kCpu).to_vector<float>()[0]; }

}  // namespace

struct Trainer::Run {
  TrainConfig config;
  TrainEvents events;
  RunFolder folder;
  Tokenizer tokenizer;
  std::unique_ptr<Model> model;
  Dataset data;
  std::optional<Dataset> valid;
  Optimizer optimizer;
  RunState state;
  std::int64_t steps = 0;
  std::optional<Evaluation> best;

  Run(TrainConfig given, TrainEvents told, bool resume, bool force)
      : config(std::move(given)),
        events(std::move(told)),
        folder(config.out, resume),
        tokenizer(Tokenizer::load(tokenizer_path(config))),
        model(make_trained_model(config, tokenizer)),
        data(make_dataset(config, events, tokenizer, model->info())),
        valid(make_valid(config, tokenizer, model->info())),
        optimizer(make_optimizer(config, *model)) {
    steps = config.steps > 0 ? config.steps : steps_of_epochs();
    check(steps <= kMostSteps, "train: {} steps are asked for, at most {} are possible", steps,
          kMostSteps);
    if (!folder.lock().unsupported().empty()) {
      note(fmt::format("{} cannot be locked ({}): see that no other process trains there",
                       folder.path(), folder.lock().unsupported()));
    }
    const RunIdentity identity = identity_of(config, tokenizer, data, valid ? &*valid : nullptr);
    if (resume) take_up(identity, force);
    state.identity = identity;
    write_file_atomically(folder.file("train.json"), config_text(config));
    folder.cut_metrics(state.step);
  }

  void take_up(const RunIdentity& identity, bool force) {
    auto found = resume_run({.folder = folder,
                             .model = *model,
                             .optimizer = optimizer,
                             .data = data,
                             .identity = identity,
                             .steps = steps,
                             .force = force,
                             .note = [this](const std::string& text) { note(text); }});
    if (!found) return;
    state = *std::move(found);
    note(fmt::format("going on from step {} of {}", state.step, steps));
  }

  void note(const std::string& text) const {
    if (events.on_note) events.on_note(text);
  }

  std::int64_t steps_of_epochs() const {
    double batches = 0;
    const auto whole = static_cast<std::int64_t>(config.epochs);
    for (std::int64_t e = 0; e < whole; ++e) batches += static_cast<double>(data.batches(e));
    batches +=
        (config.epochs - static_cast<double>(whole)) * static_cast<double>(data.batches(whole));
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::llround(batches / config.accumulate)));
  }

  std::uint64_t seed_of(std::int64_t step, int part) const {
    const auto words =
        philox_words({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
                      static_cast<std::uint32_t>(part), 5},
                     config.seed);
    return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
  }

  struct Step {
    std::int64_t tokens = 0, read = 0;
    float norm = 0;
    float loss = 0;  // of the interval, where it is told
    std::vector<HeadHealth> health{};
    std::vector<std::string> clipped{};
  };

  // What the passes of a step leave; what is told of them is on its way to the CPU.
  struct Passes {
    Gradients gradients;
    Tensor loss;  // summed over tokens
    std::optional<ScoreHealth> health;
    std::optional<ScoreClip> clip;
  };

  Passes pass_over(const std::vector<Batch>& parts, std::int64_t tokens, bool is_told) {
    const std::int64_t number = state.step;
    const bool tells = is_told && config.health, clips = config.watch.clip > 0;
    Passes result;
    result.loss = zero_loss();
    for (int i = 0; i < config.accumulate; ++i) {
      const Batch& part = parts[static_cast<std::size_t>(i)];
      if (part.tokens == 0) continue;
      nn::Training pass{.seed = seed_of(number, i), .step = number, .dtype = config.dtype};
      if (i == 0 && (tells || clips)) {
        pass.statistics = tells ? kHealthStatistics : Statistics::max_logit;
      }
      Tape tape;
      const Tensor loss =
          model->loss(part.input, part.labels, {.training = &pass},
                      {.label_smoothing = config.label_smoothing, .z_loss = config.z_loss});
      const auto weight = static_cast<double>(part.tokens);
      if (i == 0 && is_told) watch_scores(tape, pass);
      Gradients found = tape.backward(
          config.accumulate == 1 ? loss : scale(loss, weight / static_cast<double>(tokens)));
      const TapePause pause;
      result.loss = add(result.loss, scale(loss, weight));
      if (i == 0 && tells) result.health.emplace(pass, found);
      if (i == 0 && clips) result.clip.emplace(pass);
      if (result.gradients.size() == 0) {
        result.gradients = std::move(found);
      } else {
        result.gradients.accumulate(found);
      }
    }
    return result;
  }

  // Adds its loss to `total`. The device is kept busy: what is read of a step sets out before the
  // optimiser's own work, which then runs while the CPU reads, tells and begins the next step.
  Step step(Prefetch& batches, Tensor& total, bool is_told) {
    std::vector<Batch> parts;
    Step result;
    for (int i = 0; i < config.accumulate; ++i) {
      parts.push_back(batches.next());
      result.tokens += parts.back().tokens;
      result.read += parts.back().read;
    }
    Passes passes = pass_over(parts, result.tokens, is_told);
    total = add(total, passes.loss);
    std::unique_ptr<Reading> loss;
    if (is_told) loss = backend(config.device).begin_reading(total);
    optimizer.options.lr =
        config.optimizer.lr * schedule_factor(config.schedule, state.step, steps);
    optimizer.step(passes.gradients);
    passes.gradients = {};  // to free hundreds of tensors takes the CPU a while
    result.norm = optimizer.norm();
    if (!std::isfinite(result.norm)) stop_at_fault(state.step, parts);
    if (loss) result.loss = *loss->wait().data<float>();
    if (passes.health) result.health = passes.health->read();
    if (passes.clip) result.clipped = passes.clip->apply(config.watch.clip, optimizer);
    return result;
  }

  // The optimiser has left everything as it was, so the step can be looked at again.
  [[noreturn]] void stop_at_fault(std::int64_t number, const std::vector<Batch>& parts) {
    std::string fault;
    for (std::size_t i = 0; i < parts.size() && fault.empty(); ++i) {
      fault = find_fault(*model, {.batch = &parts[i],
                                  .seed = seed_of(number, static_cast<int>(i)),
                                  .step = number,
                                  .dtype = config.dtype});
    }
    const auto& last = folder.last_good();
    fail("train: step {} is not finite; {}. {}", number, fault,
         last ? "The last good checkpoint is " + *last : std::string("There is no checkpoint yet"));
  }

  void judge() {
    if (!valid && config.samples.empty()) return;
    const MeanWeights means(optimizer);
    Evaluation e = evaluate({*model, tokenizer, valid ? &*valid : nullptr}, config);
    e.step = state.step;
    if (valid) {
      e.is_best = std::isfinite(merit(e)) && (!state.best || merit(e) > *state.best);
      state.not_better = e.is_best ? 0 : state.not_better + 1;
      if (e.is_best) {
        state.best = merit(e);
        state.best_step = state.step;
        best = e;
        folder.save_model("best", *model, optimizer, tokenizer);
      }
    }
    folder.append_metrics(metrics_line(e));
    if (events.on_evaluation) events.on_evaluation(e);
  }

  Tensor zero_loss() const { return Tensor::full({}, 0, {DType::f32, config.device}); }

  struct Interval;
  void tell(Step& done, Interval& since);
  TrainResult train();
};

// What the reports of a run are made of, from one to the next.
struct Trainer::Run::Interval {
  Tensor loss;  // summed over tokens, where it is computed: nobody waits for it
  std::int64_t read = 0, first_step = 0;
  Clock::time_point start = Clock::now();
};

void Trainer::Run::tell(Step& done, Interval& since) {
  StepReport report{.step = state.step, .steps = steps};
  const double seconds = seconds_since(since.start);
  state.seconds += seconds;
  const auto [epoch, batch] = state.position;
  report.epoch = static_cast<double>(epoch) +
                 static_cast<double>(batch) / static_cast<double>(data.batches(epoch));
  report.loss = done.loss / static_cast<double>(state.tokens);
  report.lr = optimizer.options.lr;
  report.gradient_norm = done.norm;
  report.tokens_per_second = static_cast<double>(since.read) / seconds;
  report.seconds = state.seconds;
  report.seconds_left = seconds / static_cast<double>(state.step - since.first_step) *
                        static_cast<double>(steps - state.step);
  report.health = std::move(done.health);
  report.warnings = warnings_of(report.health, config.watch, state.warned);
  report.warnings.insert(report.warnings.end(), done.clipped.begin(), done.clipped.end());
  folder.append_metrics(metrics_line(report));
  if (events.on_step) events.on_step(report);
  state.tokens = 0;
  since = {.loss = zero_loss(), .first_step = state.step};
}

TrainResult Trainer::Run::train() {
  Prefetch batches(data, state.position);
  Interval since{.loss = Tensor::full({}, state.loss, {DType::f32, config.device}),
                 .first_step = state.step};
  const auto is_done = [&] { return config.patience > 0 && state.not_better >= config.patience; };
  if (is_done()) steps = state.step;
  bool is_saved = state.step > 0, is_stopped = false;
  const auto save = [&] {
    state.loss = number_of(since.loss);
    folder.save(*model, optimizer, state, config.keep);
    is_saved = true;
  };
  while (state.step < steps && !is_stopped) {
    const auto is_due = [&](std::int64_t every) {
      return state.step % every == 0 || state.step == steps;
    };
    ++state.step;
    Step done = step(batches, since.loss, is_due(config.log_every));
    state.position = batches.position();
    is_saved = false;
    since.read += done.read;
    state.tokens += done.tokens;
    if (is_due(config.log_every)) tell(done, since);
    if (is_due(config.evaluate_every)) {
      const Clock::time_point start = Clock::now();
      judge();
      since.start += Clock::now() - start;  // not a part of training
      if (is_done()) {
        note(fmt::format("no better than step {} for {} evaluations: the end", state.best_step,
                         state.not_better));
        steps = state.step;
      }
    }
    if (is_due(config.save_every)) save();
    is_stopped = events.should_stop && events.should_stop();
  }
  if (!is_saved) save();
  TrainResult result;
  result.steps = state.step;
  result.finished = state.step >= steps;
  result.best = best;
  result.model = *folder.last_good();
  if (result.finished) {
    folder.save_model("model", *model, optimizer, tokenizer);
    result.model = folder.file("model");
  }
  return result;
}

Trainer::Trainer(TrainConfig config, TrainEvents events, bool resume, bool force)
    : run_(std::make_unique<Run>(std::move(config), std::move(events), resume, force)) {}
Trainer::~Trainer() = default;
TrainResult Trainer::run() { return run_->train(); }
const Model& Trainer::model() const { return *run_->model; }
const Tokenizer& Trainer::tokenizer() const { return run_->tokenizer; }

}  // namespace qkv

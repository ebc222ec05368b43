// study_train: one small model under three scales, from the same weights on the same batches.
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "qkv/cpu.h"
#include "qkv/threads.h"
#include "study/curves.h"
#include "study/scales.h"
#include "study/train_task.h"
#include "train/health.h"

namespace qkv {
namespace {

using study::TrainTask;

void check_options(const TrainStudyOptions& o) {
  check(o.steps >= 2 && o.steps <= 1000000, "study train: steps must be 2 to 1000000, got {}",
        o.steps);
  check(o.reports >= 2 && o.reports <= 10000, "study train: reports must be 2 to 10000, got {}",
        o.reports);
  check(o.seeds >= 1 && o.seeds <= 100, "study train: seeds must be 1 to 100, got {}", o.seeds);
  check(o.layers >= 1 && o.layers <= 64, "study train: layers must be 1 to 64, got {}", o.layers);
  check(o.heads >= 1 && o.heads <= 64, "study train: heads must be 1 to 64, got {}", o.heads);
  check(o.head_size >= 2 && o.head_size <= 1024 && o.head_size % 2 == 0,
        "study train: the head size must be even and 2 to 1024, got {}", o.head_size);
  check(o.lr > 0 && o.lr <= 10, "study train: the rate must be above 0 and at most 10, got {}",
        o.lr);
}

std::unique_ptr<Model> make_studied(const TrainStudyOptions& o, const TrainTask& task, double scale,
                                    std::uint64_t seed) {
  const std::int64_t hidden = o.heads * o.head_size;
  const nlohmann::ordered_json config{{"model_type", "llama"},
                                      {"vocab_size", task.vocabulary()},
                                      {"hidden_size", hidden},
                                      {"num_hidden_layers", o.layers},
                                      {"num_attention_heads", o.heads},
                                      {"intermediate_size", 2 * hidden},
                                      {"max_position_embeddings", task.length()},
                                      {"attention_scale", scale}};
  std::unique_ptr<Model> model = make_model(config.dump());
  nn::initialize(*model, seed, {.xavier = true});
  return model;
}

// One run, a point at each report.
class StudiedRun {
 public:
  StudiedRun(const TrainStudyOptions& options, const TrainTask& task, double scale,
             std::uint64_t seed)
      : options_(options),
        task_(task),
        seed_(seed),
        model_(make_studied(options, task, scale, seed)),
        optimizer_(values(), {.rule = options.rule, .lr = options.lr, .clip_norm = 1}) {}

  Curve train(const std::function<void()>& on_step) {
    Curve curve;
    double loss = 0;
    std::int64_t since = 0;
    for (std::int64_t step = 1; step <= options_.steps; ++step) {
      // The first step is where theory speaks of the weights as they were drawn.
      const bool is_told = step == 1 || step * options_.reports / options_.steps !=
                                            (step - 1) * options_.reports / options_.steps;
      std::vector<HeadHealth> health;
      loss += take_step(step, is_told ? &health : nullptr);
      ++since;
      if (is_told) {
        curve.push_back(study::point_of(step, loss / static_cast<double>(since), health));
        loss = 0;
        since = 0;
      }
      on_step();
    }
    return curve;
  }

  std::int64_t parameters() { return nn::count_parameters(*model_); }

 private:
  std::vector<Tensor> values() {
    std::vector<Tensor> all;
    for (const nn::Parameter& p : nn::parameters(*model_)) all.push_back(p.value);
    return all;
  }

  double take_step(std::int64_t step, std::vector<HeadHealth>* health) {
    const study::TaskBatch batch = task_.batch(seed_, step);
    nn::Training pass;
    if (health != nullptr) pass.statistics = kHealthStatistics;
    Tape tape;
    const Tensor loss = model_->loss({.ids = batch.ids}, batch.labels, {.training = &pass});
    if (health != nullptr) watch_scores(tape, pass);
    const Gradients gradients = tape.backward(loss);
    if (health != nullptr) *health = ScoreHealth(pass, gradients).read();
    const TapePause pause;
    optimizer_.options.lr = options_.lr * schedule_factor({.kind = ScheduleKind::constant,
                                                           .warmup = options_.steps / 10},
                                                          step, options_.steps);
    const float norm = optimizer_.step(gradients).to_vector<float>()[0];
    check(std::isfinite(norm), "study train: step {} is not finite; lower the rate {}", step,
          options_.lr);
    return loss.to_vector<float>()[0];
  }

  const TrainStudyOptions& options_;
  const TrainTask& task_;
  std::uint64_t seed_;
  std::unique_ptr<Model> model_;
  Optimizer optimizer_;
};

}  // namespace

TrainStudy study_train(const TrainStudyOptions& options) {
  check_options(options);
  const TrainTask task(options);
  TrainStudy result;
  result.options = options;
  result.options.progress = nullptr;
  result.target = cpu_target();
  result.threads = num_threads();
  result.guessing = task.guessing();
  int done = 0;
  const auto total =
      static_cast<int>(options.steps * options.seeds * static_cast<int>(study::kScales.size()));
  const auto on_step = [&] {
    if (options.progress) options.progress(++done, total);
  };
  for (const study::Scale& scale : study::kScales) {
    result.scales.push_back(scale.of(static_cast<double>(options.head_size)));
    CurveGroup group{scale.name};
    for (std::int64_t i = 0; i < options.seeds; ++i) {
      StudiedRun run(options, task, result.scales.back(),
                     options.seed + static_cast<std::uint64_t>(i));
      result.parameters = run.parameters();
      group.runs.push_back(run.train(on_step));
    }
    result.groups.push_back(std::move(group));
  }
  return result;
}

}  // namespace qkv

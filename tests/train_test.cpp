// Runs: that they learn, that one taken up gives the bits of one never stopped, and what they say
// when something is wrong.
#include "qkv/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "expect_error.h"
#include "qkv/checkpoint.h"
#include "support/tiny_run.h"
#include "train/health.h"

namespace qkv {
namespace {

using test::TinyRun;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream in(bytes_of_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Schedule, RisesAndFalls) {
  const auto at = [](ScheduleKind kind, std::int64_t step) {
    return schedule_factor({.kind = kind, .warmup = 10, .floor = 0.1}, step, 110);
  };
  for (const ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::linear,
                                  ScheduleKind::cosine, ScheduleKind::inverse_sqrt}) {
    EXPECT_DOUBLE_EQ(at(kind, 1), 0.1);
    EXPECT_DOUBLE_EQ(at(kind, 10), 1);
    EXPECT_EQ(schedule_from_string(to_string(kind)), kind);
  }
  EXPECT_DOUBLE_EQ(at(ScheduleKind::constant, 110), 1);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::linear, 60), 0.55);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::linear, 110), 0.1);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::cosine, 60), 0.55);
  EXPECT_NEAR(at(ScheduleKind::cosine, 35), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(at(ScheduleKind::inverse_sqrt, 40), 0.5);
  EXPECT_DOUBLE_EQ(schedule_factor({.kind = ScheduleKind::cosine}, 5, 5), 0);
}

TEST(TrainConfigFile, IsReadWithItsChanges) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/run.json";
  std::ofstream(path) << R"({"task": "sequence-to-sequence", "model": {"model_type": "marian"},
    "tokenizer": "tok", "data": {"train": ["a.tsv", {"path": "b.tsv", "prefix": "<fr>"}],
    "valid": "v.tsv", "batch_tokens": 100}, "optimizer": {"lr": 0.5}, "epochs": 2.5})";
  const TrainConfig c = read_train_config(
      path, {"optimizer.lr=0.25", "schedule.kind=linear", "seed=7", "samples=[\"a b\"]"});
  EXPECT_EQ(c.data.task, Task::sequence_to_sequence);
  EXPECT_EQ(c.tokenizer, folder.path() + "/tok");
  ASSERT_THAT(c.data.files, SizeIs(2));
  EXPECT_EQ(c.data.files[0].path, folder.path() + "/a.tsv");
  EXPECT_EQ(c.data.files[1].prefix, "<fr>");
  ASSERT_THAT(c.valid, SizeIs(1));
  EXPECT_EQ(c.optimizer.lr, 0.25);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::linear);
  EXPECT_EQ(c.seed, 7u);
  EXPECT_EQ(c.epochs, 2.5);
  EXPECT_THAT(c.samples, ::testing::ElementsAre("a b"));
  EXPECT_THAT(c.model_config, HasSubstr("marian"));
  EXPECT_ERROR("optimizer.learning is no key here",
               read_train_config(path, {"optimizer.learning=1"}));
  EXPECT_ERROR("optimizer.lr", read_train_config(path, {"optimizer.lr=-1"}));
  EXPECT_ERROR("key=value", read_train_config(path, {"steps"}));
  EXPECT_ERROR("f32 or bf16", read_train_config(path, {"dtype=f16"}));
  EXPECT_ERROR("none.json", read_train_config(folder.path() + "/none.json"));
}

// Every part of a run that could be forgotten by a checkpoint.
struct Variant {
  const char* name;
  Task task;
  void (*change)(TrainConfig&);
};
void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }

class Resumed : public ::testing::TestWithParam<Variant> {};

TEST_P(Resumed, GivesTheBitsOfARunThatWasNeverStopped) {
  const TinyRun tiny;
  TrainConfig config = tiny.config(GetParam().task);
  GetParam().change(config);
  const auto run = [&](const std::string& out, std::int64_t stop_after, bool resume) {
    TrainConfig c = config;
    c.out = tiny.file(out);
    TrainEvents events;
    std::int64_t steps = 0;
    events.should_stop = [&] { return ++steps == stop_after; };
    return Trainer(c, events, resume).run();
  };
  EXPECT_TRUE(run("whole", 0, false).finished);
  EXPECT_FALSE(run("parts", 3, false).finished);
  EXPECT_FALSE(run("parts", 4, true).finished);
  EXPECT_TRUE(run("parts", 0, true).finished);
  for (const char* file : {"/model/model.safetensors", "/checkpoint-000000012/model.safetensors",
                           "/checkpoint-000000012/optimizer.safetensors"}) {
    EXPECT_EQ(bytes_of_file(tiny.file("whole") + file), bytes_of_file(tiny.file("parts") + file))
        << file;
  }
  // The same steps were told of, once each.
  const auto whole = lines_of(tiny.file("whole/metrics.jsonl"));
  EXPECT_THAT(lines_of(tiny.file("parts/metrics.jsonl")), SizeIs(whole.size()));
}

INSTANTIATE_TEST_SUITE_P(Runs, Resumed,
                         ::testing::Values(Variant{"pairs", Task::sequence_to_sequence,
                                                   [](TrainConfig& c) {
                                                     c.label_smoothing = 0.1;
                                                     c.optimizer.ema = 0.9;
                                                   }},
                                           Variant{"accumulated", Task::sequence_to_sequence,
                                                   [](TrainConfig& c) { c.accumulate = 2; }},
                                           Variant{"bf16", Task::sequence_to_sequence,
                                                   [](TrainConfig& c) { c.dtype = DType::bf16; }},
                                           Variant{"text", Task::language_model,
                                                   [](TrainConfig&) {}},
                                           Variant{"lion", Task::language_model,
                                                   [](TrainConfig& c) {
                                                     c.optimizer.rule = OptimizerRule::lion;
                                                     c.optimizer.lr = 3e-4;
                                                   }},
                                           Variant{"sgd", Task::language_model,
                                                   [](TrainConfig& c) {
                                                     c.optimizer.rule = OptimizerRule::sgd;
                                                     c.optimizer.lr = 0.1;
                                                   }},
                                           Variant{"clipped", Task::sequence_to_sequence,
                                                   [](TrainConfig& c) { c.watch.clip = 0.2; }}),
                         [](const auto& which) { return std::string(which.param.name); });

TEST(Trainer, LearnsAndTells) {
  const TinyRun tiny;
  TrainConfig config = tiny.config(Task::sequence_to_sequence);
  config.out = tiny.file("run");
  config.valid = {{tiny.file("pairs.tsv")}};
  config.steps = 60;
  config.log_every = 20;
  config.evaluate_every = 30;
  config.evaluate_examples = 50;
  config.samples = {"one two"};
  std::vector<StepReport> steps;
  std::vector<Evaluation> evaluations;
  TrainEvents events;
  events.on_step = [&](const StepReport& r) { steps.push_back(r); };
  events.on_evaluation = [&](const Evaluation& e) { evaluations.push_back(e); };
  const TrainResult result = Trainer(config, events).run();
  EXPECT_TRUE(result.finished);
  ASSERT_THAT(steps, SizeIs(3));
  EXPECT_LT(steps[2].loss, steps[0].loss - 0.3);
  // 2 encoder layers, 2 decoder layers with two attentions each; 2 heads.
  EXPECT_THAT(steps[0].health, SizeIs(12));
  for (const HeadHealth& h : steps[0].health) {
    EXPECT_GT(h.entropy, 0);
    EXPECT_LE(h.entropy, 1 + 1e-6);
    EXPECT_GT(h.q_grad_norm, 0) << h.name << " " << h.head;
    EXPECT_GT(h.k_grad_norm, 0) << h.name << " " << h.head;
  }
  ASSERT_THAT(evaluations, SizeIs(2));
  EXPECT_TRUE(evaluations[0].bleu.has_value());
  EXPECT_GT(evaluations[1].accuracy, 0.2);
  EXPECT_NEAR(evaluations[1].perplexity, std::exp(evaluations[1].loss), 1e-9);
  EXPECT_THAT(evaluations[1].samples, SizeIs(1));
  const auto model = load_model(result.model);
  EXPECT_EQ(model->info().vocabulary, Tokenizer::load(result.model).size());
  EXPECT_THAT(lines_of(tiny.file("run/metrics.jsonl")), SizeIs(5));
}

TEST(Trainer, RefusesAFolderThatHoldsARun) {
  const TinyRun tiny;
  TrainConfig config = tiny.config(Task::language_model);
  config.out = tiny.file("run");
  config.steps = 2;
  Trainer(config, {}).run();
  EXPECT_ERROR("--resume", Trainer(config, {}));
}

TEST(Trainer, RemovesWhatAKilledRunLeftUnfinished) {
  const TinyRun tiny;
  TrainConfig config = tiny.config(Task::language_model);
  config.out = tiny.file("run");
  config.steps = 2;
  Trainer(config, {}).run();
  const std::filesystem::path run(config.out);
  std::filesystem::create_directory(run / ".qkv-checkpoint-000000001.old");
  std::ofstream(run / ".qkv-checkpoint-000000001.old" / "optimizer.safetensors") << "half";
  std::ofstream(run / ".qkv-77-0.tmp") << "half";
  std::ofstream(run / ".mine") << "kept";
  config.steps = 3;
  Trainer(config, {}, true).run();
  std::vector<std::string> hidden;
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".")) hidden.push_back(name);
  }
  EXPECT_THAT(hidden, ::testing::ElementsAre(".mine"));
}

TEST(Trainer, KeepsTheNewestCheckpoints) {
  const TinyRun tiny;
  TrainConfig config = tiny.config(Task::language_model);
  config.out = tiny.file("run");
  config.save_every = 2;
  config.keep = 3;
  Trainer(config, {}).run();
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(config.out)) {
    const std::string name = entry.path().filename().string();
    if (name.find("checkpoint") != name.npos) found.push_back(name);
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre("checkpoint-000000008", "checkpoint-000000010",
                                                     "checkpoint-000000012"));
}

// A weight is broken in one head of one layer: the run ends and names both.
TEST(Trainer, FindsWhereANumberBroke) {
  const TinyRun tiny;
  TrainConfig config = tiny.config(Task::sequence_to_sequence);
  config.out = tiny.file("first");
  config.steps = 1;
  Trainer(config, {}).run();
  const std::string folder = tiny.file("first/model");
  const auto broken = [&](const std::string& parameter, std::int64_t row) {
    const auto model = load_model(folder, {.writable = true});
    for (const nn::Parameter& p : nn::parameters(*model)) {
      if (p.name == parameter) {
        p.value.data<float>()[row * p.value.size(1)] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    const std::string out = tiny.file("broken");
    std::filesystem::remove_all(out);
    save_model(*model, out);
    std::filesystem::copy_file(folder + "/tokenizer.json", out + "/tokenizer.json");
    TrainConfig next = tiny.config(Task::sequence_to_sequence);
    next.model_config.clear();
    next.model = out;
    next.out = tiny.file("second");
    std::filesystem::remove_all(next.out);
    return testing::error_of([&] { Trainer(next, {}).run(); });
  };
  EXPECT_THAT(broken("model.encoder.layers.1.self_attn.q_proj.weight", 20),
              ::testing::AllOf(HasSubstr("step 1"), HasSubstr("encoder.1.self head 1"),
                               HasSubstr("queries")));
  EXPECT_THAT(broken("model.decoder.layers.0.encoder_attn.k_proj.weight", 3),
              ::testing::AllOf(HasSubstr("decoder.0.cross head 0"), HasSubstr("keys")));
  EXPECT_THAT(broken("model.encoder.layers.0.fc1.weight", 5),
              ::testing::AllOf(HasSubstr("what enters encoder.1.self"),
                               HasSubstr("model.encoder.layers.0.fc1.weight"), HasSubstr("row 5")));
}

TEST(ScoreHealth, WarnsOnceAboutGrowthAndAgainWhenItGoesOn) {
  std::vector<HeadHealth> health(2);
  health[0] = {.name = "encoder.0.self", .head = 0, .max_logit = 2, .entropy = 0.9};
  health[1] = {.name = "encoder.0.self", .head = 1, .max_logit = 3, .entropy = 0.5};
  const WatchOptions watch{.max_logit = 50, .min_entropy = 0.05, .growth = 4};
  std::vector<double> warned;
  EXPECT_THAT(warnings_of(health, watch, warned), IsEmpty());
  health[1].max_logit = 13;
  EXPECT_THAT(warnings_of(health, watch, warned),
              ::testing::ElementsAre(HasSubstr("head 1: the largest logit grew from 3 to 13")));
  EXPECT_THAT(warnings_of(health, watch, warned), IsEmpty());
  health[0].entropy = 0.01;
  health[1].max_logit = 60;
  EXPECT_THAT(warnings_of(health, watch, warned),
              ::testing::ElementsAre(HasSubstr("head 0: entropy collapsed"),
                                     HasSubstr("head 1: the largest logit grew from 13 to 60")));
  health[0].entropy = 1;
  EXPECT_THAT(warnings_of(health, watch, warned),
              ::testing::ElementsAre(HasSubstr("head 1: the largest logit is 60")));
}

// What was clipped gives the limit when it is run again; the other heads give what they gave.
TEST(ScoreHealth, ClipBringsALogitToItsLimit) {
  const TinyRun tiny;
  for (const Task task : {Task::sequence_to_sequence, Task::language_model}) {
    TrainConfig config = tiny.config(task);
    config.out = tiny.file("run-" + to_string(task));
    config.steps = 1;
    const TrainResult result = Trainer(config, {}).run();
    const auto model = load_model(result.model, {.writable = true});
    std::vector<Tensor> parameters;
    for (const nn::Parameter& p : nn::parameters(*model)) parameters.push_back(p.value);
    const Optimizer optimizer(parameters);
    const Dataset data(config.data, Tokenizer::load(result.model), model->info());
    const Batch batch = data.batch({0, 0});
    const auto look = [&] {
      const Tape tape;
      nn::Training pass{.statistics = kHealthStatistics};
      model->loss(batch.input, batch.labels, {.training = &pass});
      return pass;
    };
    const nn::Training before = look();
    const std::vector<HeadHealth> first = ScoreHealth(before, {}).read();
    const double limit = (first[0].max_logit + first[1].max_logit) / 2;
    ASSERT_GT(limit, 0);
    // Only the first attention: what it changes changes all that follow.
    nn::Training only = before;
    only.health.resize(1);
    EXPECT_THAT(ScoreClip(only).apply(limit, optimizer), SizeIs(1));
    const std::vector<HeadHealth> second = ScoreHealth(look(), {}).read();
    const std::size_t large = first[0].max_logit > limit ? 0 : 1;
    EXPECT_NEAR(second[large].max_logit, limit, 1e-4 * limit);
    EXPECT_EQ(second[1 - large].max_logit, first[1 - large].max_logit);
  }
}

}  // namespace
}  // namespace qkv

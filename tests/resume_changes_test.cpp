// What may change between two parts of a run, and what makes it another one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "support/resumed_run.h"
#include "train/run_config.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using test::bytes_at;
using test::run_once;
using test::StoppedRun;
using test::TakenUp;
using test::write_bytes;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

struct ConfigChange {
  const char* said;
  void (*apply)(TrainConfig&);
};

const ConfigChange kRefused[] = {
    {"optimizer.rule was \"adamw\", now \"lion\"",
     [](TrainConfig& c) { c.optimizer.rule = OptimizerRule::lion; }},
    {"optimizer.beta1 was 0.9, now 0.8", [](TrainConfig& c) { c.optimizer.beta1 = 0.8; }},
    {"optimizer.beta2", [](TrainConfig& c) { c.optimizer.beta2 = 0.9; }},
    {"optimizer.eps", [](TrainConfig& c) { c.optimizer.eps = 1e-6; }},
    {"optimizer.weight_decay", [](TrainConfig& c) { c.optimizer.weight_decay = 0; }},
    {"optimizer.clip_norm", [](TrainConfig& c) { c.optimizer.clip_norm = 2; }},
    {"optimizer.ema", [](TrainConfig& c) { c.optimizer.ema = 0.9; }},
    {"data.block was 24, now 16", [](TrainConfig& c) { c.data.block = 16; }},
    {"data.batch_tokens", [](TrainConfig& c) { c.data.batch_tokens = 200; }},
    {"accumulate was 1, now 2", [](TrainConfig& c) { c.accumulate = 2; }},
    {"label_smoothing", [](TrainConfig& c) { c.label_smoothing = 0.1; }},
    {"z_loss", [](TrainConfig& c) { c.z_loss = 0.1; }},
    {"seed was 3, now 4", [](TrainConfig& c) { c.seed = 4; }},
    {"init", [](TrainConfig& c) { c.xavier = true; }},
    {"dtype was \"f32\", now \"bf16\"", [](TrainConfig& c) { c.dtype = DType::bf16; }},
    {"model.resid_pdrop was 0.1, now 0.2",
     [](TrainConfig& c) {
       c.model_config =
           test::replaced(c.model_config, "\"resid_pdrop\": 0.1", "\"resid_pdrop\": 0.2");
     }},
    {"model.layer_norm_epsilon was absent, now 0.001",
     [](TrainConfig& c) {
       c.model_config =
           test::replaced(c.model_config, "\"n_head\"", "\"layer_norm_epsilon\": 1e-3, \"n_head\"");
     }},
    {"data.train had 1 files, now 2",
     [](TrainConfig& c) { c.data.files.push_back(c.data.files[0]); }},
};

TEST(ResumeChanges, WhatMakesItAnotherRunIsRefusedByName) {
  const StoppedRun run;
  for (const ConfigChange& change : kRefused) {
    TrainConfig changed = run.config;
    change.apply(changed);
    EXPECT_THAT(testing::error_of([&] { run_once(changed, true); }),
                AllOf(HasSubstr(change.said), HasSubstr("after step 4"), HasSubstr("--force")));
  }
  // None of them has touched the run.
  run_once(run.config, true);
  EXPECT_EQ(run.model(), run.expected());
}

TEST(ResumeChanges, ForceGoesOnAndNotesWhatDiffers) {
  const StoppedRun run;
  TrainConfig changed = run.config;
  changed.optimizer.beta1 = 0.8;
  changed.accumulate = 2;
  changed.data.batch_tokens = 100000;  // the place in the data is behind the end of its epoch
  const TakenUp forced = run_once(changed, true, true);
  EXPECT_TRUE(forced.result.finished);
  EXPECT_THAT(forced.notes, AllOf(Contains("from step 5 on: optimizer.beta1 was 0.9, now 0.8"),
                                  Contains("from step 5 on: accumulate was 1, now 2")));
  // From there on it is the changed run.
  changed.steps = 7;
  EXPECT_THAT(run_once(changed, true).notes, Each(Not(HasSubstr("beta1"))));
  EXPECT_ERROR("optimizer.beta1 was 0.8, now 0.9", run_once(run.config, true));
}

const ConfigChange kAllowed[] = {
    {"schedule.kind", [](TrainConfig& c) { c.schedule.kind = ScheduleKind::linear; }},
    {"steps was 4, now 6", [](TrainConfig&) {}},
    {"log_every was 1, now 2", [](TrainConfig& c) { c.log_every = 2; }},
    {"save_every", [](TrainConfig& c) { c.save_every = 1; }},
    {"evaluate_every", [](TrainConfig& c) { c.evaluate_every = 3; }},
    {"keep", [](TrainConfig& c) { c.keep = 5; }},
    {"patience", [](TrainConfig& c) { c.patience = 5; }},
    {"samples", [](TrainConfig& c) { c.samples = {"one is"}; }},
    {"health", [](TrainConfig& c) { c.health = false; }},
    {"watch.max_logit", [](TrainConfig& c) { c.watch.max_logit = 50; }},
    {"watch.clip", [](TrainConfig& c) { c.watch.clip = 50; }},
    {"data.valid had 0 files, now 1", [](TrainConfig& c) { c.valid = c.data.files; }},
};

TEST(ResumeChanges, WhatMayChangeIsNoted) {
  const StoppedRun run;
  TrainConfig changed = run.config;
  for (const ConfigChange& change : kAllowed) change.apply(changed);
  const TakenUp taken = run_once(changed, true);
  EXPECT_TRUE(taken.result.finished);
  EXPECT_THAT(taken.notes, ::testing::SizeIs(std::size(kAllowed) + 1));
  for (const ConfigChange& change : kAllowed) {
    EXPECT_THAT(taken.notes, Contains(HasSubstr("from step 5 on: " + std::string(change.said))));
  }
}

// What only tells, saves or looks does not change a bit of the weights.
TEST(ResumeChanges, TellingSavingAndLookingDoNotChangeBits) {
  const StoppedRun run;
  TrainConfig changed = run.config;
  changed.log_every = 3;
  changed.save_every = 5;
  changed.evaluate_every = 2;
  changed.keep = 1;
  changed.health = false;
  changed.samples = {"one is"};
  changed.valid = changed.data.files;
  run_once(changed, true);
  EXPECT_EQ(run.model(), run.expected());
}

TEST(ResumeChanges, AnotherRateTakesEffectAndIsNoted) {
  const StoppedRun run;
  TrainConfig changed = run.config;
  changed.optimizer.lr = 0.5;
  const TakenUp taken = run_once(changed, true);
  EXPECT_THAT(taken.notes, Contains("from step 5 on: optimizer.lr was 0.003, now 0.5"));
  EXPECT_THAT(taken.rates, ::testing::ElementsAre(0.5, 0.5));
  EXPECT_NE(run.model(), run.expected());
  // The folder's own config is the changed one.
  EXPECT_EQ(read_train_config(run.config.out + "/train.json").optimizer.lr, 0.5);
}

TEST(ResumeChanges, FewerStepsThanThereAreAreRefused) {
  StoppedRun run;
  run.config.steps = 3;
  EXPECT_THAT(testing::error_of([&] { run_once(run.config, true); }),
              AllOf(HasSubstr("is at step 4"), HasSubstr("ends at 3"), HasSubstr("--force")));
  const TakenUp forced = run_once(run.config, true, true);
  EXPECT_TRUE(forced.result.finished);
  EXPECT_EQ(forced.result.steps, 4);
  run.config.steps = 1'000'000'000;
  EXPECT_ERROR("at most 999999999", run_once(run.config, true));
}

TEST(ResumeChanges, OtherDataIsRefusedByName) {
  StoppedRun run;
  const std::string path = run.config.data.files[0].path, text = bytes_at(path);
  write_bytes(path, text + "one more.\n");
  const std::string said = "data.train: " + path + " does not give the tokens it gave";
  EXPECT_ERROR(said, run_once(run.config, true));
  std::string other = text;
  std::swap(other[0], other[1]);  // as long as before
  write_bytes(path, other);
  EXPECT_ERROR(said, run_once(run.config, true));
  write_bytes(path, text);
  run.keep_copy();
  // The same data elsewhere is the same run.
  run.config.data.files[0].path = run.tiny.file("moved.txt");
  fs::rename(path, run.config.data.files[0].path);
  EXPECT_THAT(run_once(run.config, true).notes, Each(Not(HasSubstr("data.train"))));
  EXPECT_EQ(run.model(), run.expected());
  run.put_back();
  write_bytes(run.config.data.files[0].path, text + "one more.\n");
  const TakenUp forced = run_once(run.config, true, true);
  EXPECT_THAT(forced.notes, Contains(HasSubstr("does not give the tokens")));
  EXPECT_TRUE(forced.result.finished);
}

// Evaluations on other data cannot be compared: what was best before is forgotten.
TEST(ResumeChanges, OtherValidationDataForgetsWhatWasBest) {
  const test::TinyRun tiny;
  TrainConfig config = tiny.config(Task::language_model);
  config.out = tiny.file("run");
  config.valid = {{tiny.file("valid.txt")}};
  config.steps = config.evaluate_every = 2;
  write_bytes(config.valid[0].path, "two is 2.\nthree is 3.\n");
  run_once(config);
  config.steps = 4;
  write_bytes(config.valid[0].path, "zzz qqq xxx jjj is wrong in all ways.\n");
  EXPECT_ERROR("data.valid: " + config.valid[0].path, run_once(config, true));
  config.measure_bleu = false;
  EXPECT_ERROR("bleu was true, now false", run_once(config, true));
  const TakenUp forced = run_once(config, true, true);
  ASSERT_TRUE(forced.result.best);  // though its loss is larger than that of before
  EXPECT_EQ(forced.result.best->step, 4);
}

TEST(ResumeChanges, AnotherTokenizerIsRefused) {
  const StoppedRun run;
  train_tokenizer({run.tiny.file("pairs.tsv")}, {.kind = TokenizerKind::unigram, .size = 60})
      .save(run.tiny.file("tokenizer.json"));
  EXPECT_THAT(testing::error_of([&] { run_once(run.config, true); }),
              AllOf(HasSubstr("the tokenizer is another"), HasSubstr("data.train: ")));
}

// The config in the folder of a run is that run, wherever it is read from, and wherever the folder
// was moved to.
TEST(ResumeChanges, TheConfigOfTheFolderGoesOnAsItIs) {
  const StoppedRun run;
  const std::string expected = run.expected();
  run_once(run.config, true);  // with the steps that it ends at
  fs::remove_all(run.checkpoint(6));
  fs::remove_all(run.config.out + "/model");
  const std::string moved = run.tiny.file("moved");
  fs::rename(run.config.out, moved);
  const TrainConfig read = read_train_config(moved + "/train.json");
  EXPECT_EQ(fs::path(read.out) / "", fs::path(moved) / "");
  EXPECT_EQ(config_text(read), bytes_at(moved + "/train.json"));
  EXPECT_EQ(config_values(read), config_values(run.config));
  EXPECT_THAT(
      run_once(read, true).notes,
      ::testing::ElementsAre("from step 5 on: steps was 4, now 6", "going on from step 4 of 6"));
  EXPECT_EQ(bytes_at(moved + "/model/model.safetensors"), expected);
}

// Every key, of every part.
TEST(ResumeChanges, AConfigIsWrittenAsItIsRead) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("run.json");
  write_bytes(path, R"({"task": "sequence-to-sequence", "model": "gpt2", "tokenizer": "tok",
    "data": {"train": ["a.tsv", {"path": "b.tsv", "prefix": "<fr>"}], "valid": "v.tsv",
      "source_column": 1, "target_column": 0, "prefix_rate": 0.5, "max_source": 10,
      "max_target": 11, "documents": "line", "block": 12, "mask_rate": 0.25, "batch_tokens": 100,
      "cache": "tokens"},
    "optimizer": {"rule": "lion", "lr": 0.1, "beta1": 0.3, "beta2": 0.7, "eps": 1e-7,
      "weight_decay": 0.3, "clip_norm": 0.5, "ema": 0.9},
    "schedule": {"kind": "linear", "warmup": 7, "floor": 0.1},
    "steps": 5, "epochs": 2.5, "accumulate": 3, "label_smoothing": 0.1, "z_loss": 1e-4,
    "dtype": "bf16", "device": "cuda", "seed": 7, "init": "xavier", "deviation": 0.3, "out": "run",
    "log_every": 2, "save_every": 3, "evaluate_every": 4, "keep": 5, "patience": 6,
    "evaluate_examples": 0, "bleu": false, "samples": ["a b"], "health": false,
    "watch": {"max_logit": 1.5, "min_entropy": 0.5, "growth": 2.5, "clip": 3.5}})");
  const TrainConfig first = read_train_config(path);
  write_bytes(folder.path("again.json"), config_text(first));
  const TrainConfig second = read_train_config(folder.path("again.json"));
  EXPECT_EQ(config_text(second), config_text(first));
  // Nothing is left out: what is written has all keys that there are, and their values.
  ConfigValues written = json_values(config_text(first)), given = json_values(bytes_at(path));
  for (const char* key : {"tokenizer", "data.train", "data.valid", "data.cache", "out"}) {
    EXPECT_EQ(written.erase(key), 1U) << key;
    given.erase(key);
  }
  EXPECT_EQ(written, given);
  EXPECT_EQ(second.data.files[1].path, folder.path("b.tsv"));
  EXPECT_EQ(second.data.files[1].prefix, "<fr>");
  EXPECT_EQ(second.tokenizer, folder.path("tok"));
  EXPECT_EQ(second.data.cache, folder.path("tokens"));
}

}  // namespace
}  // namespace qkv

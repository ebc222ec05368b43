// Checkpoints that were damaged, copied or written by others: what a run that is taken up makes of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <set>

#include "expect_error.h"
#include "qkv/checkpoint.h"
#include "support/resumed_run.h"
#include "train/run_folder.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using test::bytes_at;
using test::flip_bit;
using test::replaced;
using test::run_once;
using test::StoppedRun;
using test::TakenUp;
using test::write_bytes;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kFiles[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                              "config.json", "checksums.xxh64"};

TEST(Resume, ACheckpointHasTheseFiles) {
  const StoppedRun run;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(run.checkpoint(4))) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, std::set<std::string>(std::begin(kFiles), std::end(kFiles)));
}

// Every bit of every file, the checksums' own included, of a folder small enough for that.
TEST(Resume, EveryFlippedBitIsFound) {
  const testing::TemporaryFolder folder;
  for (const int file : {0, 1}) {
    std::string bytes;
    for (int i = 0; i < 100 + 61 * file; ++i) bytes += static_cast<char>(i * i >> 2);
    write_bytes(folder.path(kFiles[file]), bytes);
  }
  EXPECT_FALSE(verify_checksums(folder.path()));
  write_checksums(folder.path());
  ASSERT_TRUE(verify_checksums(folder.path()));
  for (const std::string file : {kFiles[0], kFiles[1], kChecksums}) {
    const std::uintmax_t bits = fs::file_size(folder.path(file)) * 8;
    for (std::uintmax_t bit = 0; bit < bits; ++bit) {
      flip_bit(folder.path(file), bit);
      ASSERT_THAT(testing::error_of([&] { verify_checksums(folder.path()); }),
                  AllOf(HasSubstr(file), HasSubstr("damaged")))
          << "bit " << bit;
      flip_bit(folder.path(file), bit);
    }
  }
  ASSERT_TRUE(verify_checksums(folder.path()));
}

TEST(Resume, FlippedBitsOfACheckpointAreFound) {
  const StoppedRun run;
  const std::string folder = run.checkpoint(4).string();
  ASSERT_TRUE(verify_checksums(folder));
  for (const std::string file : kFiles) {
    const std::uintmax_t bits = fs::file_size(run.checkpoint(4) / file) * 8;
    for (std::uintmax_t part = 0; part < 20; ++part) {
      flip_bit(run.checkpoint(4) / file, (bits - 1) * part / 19);
      ASSERT_THAT(testing::error_of([&] { verify_checksums(folder); }), HasSubstr("damaged"))
          << file << " part " << part;
      flip_bit(run.checkpoint(4) / file, (bits - 1) * part / 19);
    }
  }
  ASSERT_TRUE(verify_checksums(folder));
}

// The run goes on from the one before, and ends with the same bits as if nothing had happened.
TEST(Resume, PassesOverADamagedCheckpoint) {
  const StoppedRun run;
  const std::string expected = run.expected();
  run.keep_copy();
  std::uintmax_t part = 0;  // elsewhere in each file
  for (const std::string file : kFiles) {
    run.put_back();
    const fs::path path = run.checkpoint(4) / file;
    flip_bit(path, (fs::file_size(path) * 8 - 1) * part++ / 4);
    const TakenUp taken = run_once(run.config, true);
    EXPECT_THAT(taken.notes, Contains(AllOf(HasSubstr("checkpoint-000000004 is passed over"),
                                            HasSubstr(file), HasSubstr("damaged"))));
    EXPECT_THAT(taken.notes, Contains("going on from step 2 of 6"));
    EXPECT_EQ(run.model(), expected);
    EXPECT_TRUE(verify_checksums(run.checkpoint(4).string()));  // it was made again
    run.put_back();
    fs::remove(path);
    EXPECT_THAT(run_once(run.config, true).all_notes(), HasSubstr(file));
    EXPECT_EQ(run.model(), expected);
  }
}

// The one that was passed over does not push out the one that is good.
TEST(Resume, ADamagedCheckpointDoesNotCountForKeep) {
  StoppedRun run;
  flip_bit(run.checkpoint(4) / "model.safetensors", 100000);
  run.config.steps = 3;
  run.config.keep = 1;
  run_once(run.config, true);
  EXPECT_TRUE(fs::exists(run.checkpoint(3)));
  EXPECT_FALSE(fs::exists(run.checkpoint(4)));
}

TEST(Resume, NamesAllCheckpointsWhereNoneIsSound) {
  StoppedRun run;
  flip_bit(run.checkpoint(2) / "state.json", 100);
  const fs::path weights = run.checkpoint(4) / "model.safetensors";
  flip_bit(weights, fs::file_size(weights) * 8 - 16);  // the last bits of a fraction
  EXPECT_THAT(testing::error_of([&] { run_once(run.config, true); }),
              AllOf(HasSubstr("no sound checkpoint"),
                    HasSubstr("checkpoint-000000004: model.safetensors is damaged"),
                    HasSubstr("checkpoint-000000002: state.json is damaged")));
  const TakenUp forced = run_once(run.config, true, true);
  EXPECT_THAT(forced.notes, Contains("checkpoint-000000004 is used all the same"));
  EXPECT_TRUE(forced.result.finished);
}

// Writes a tensor of a checkpoint anew, with checksums that are right.
void break_number(const fs::path& folder, const char* file, float value) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const Checkpoint stored = Checkpoint::open((folder / file).string());
    for (const std::string& name : stored.names()) {
      Tensor copy = Tensor::empty(stored[name].shape(), {stored[name].dtype()});
      std::memcpy(copy.raw(), stored[name].raw(),
                  static_cast<std::size_t>(copy.numel()) * size_of(copy.dtype()));
      tensors.emplace_back(name, copy);
    }
  }
  tensors.back().second.data<float>()[0] = value;
  ASSERT_EQ(tensors.back().second.dtype(), DType::f32);
  save_checkpoint((folder / file).string(), tensors);
  fs::remove(folder / "checksums.xxh64");
  write_checksums(folder.string());
}

TEST(Resume, PassesOverWhatIsNotFinite) {
  const StoppedRun run;
  const std::string expected = run.expected();
  run.keep_copy();
  const std::pair<const char*, float> broken[] = {
      {"model.safetensors", std::numeric_limits<float>::infinity()},
      {"optimizer.safetensors", std::numeric_limits<float>::quiet_NaN()}};
  for (const auto& [file, value] : broken) {
    run.put_back();
    break_number(run.checkpoint(4), file, value);
    EXPECT_THAT(run_once(run.config, true).notes,
                Contains(AllOf(HasSubstr("checkpoint-000000004 is passed over"),
                               HasSubstr("is not finite"))));
    EXPECT_EQ(run.model(), expected);
  }
}

// A step whose weights are not finite is no checkpoint, and the one before stays the last good one.
TEST(Resume, SavesNothingThatIsNotFinite) {
  StoppedRun run;
  TrainConfig wild = run.config;
  wild.optimizer.lr = 1e300;
  wild.save_every = 1;
  EXPECT_THAT(testing::error_of([&] { run_once(wild, true); }),
              AllOf(HasSubstr("after step 5 "), HasSubstr("is not finite"), HasSubstr("wte"),
                    HasSubstr("The last good checkpoint is " + run.checkpoint(4).string())));
  EXPECT_FALSE(fs::exists(run.checkpoint(5)));
  EXPECT_TRUE(verify_checksums(run.checkpoint(4).string()));
  run_once(run.config, true);
  EXPECT_EQ(run.model(), run.expected());
  wild.out = run.tiny.file("wild");
  EXPECT_ERROR("There is no checkpoint yet", run_once(wild));
}

// A state of a version before checksums.
void make_old(const fs::path& folder) {
  fs::remove(folder / "checksums.xxh64");
  std::string state = bytes_at(folder / "state.json");
  state = replaced(state, "\"format\": 2,", "");
  state.resize(state.find(",\n \"config\""));
  write_bytes(folder / "state.json", state + "\n}\n");
}

TEST(Resume, GoesOnFromCheckpointsWithoutChecksums) {
  const StoppedRun run;
  make_old(run.checkpoint(2));
  make_old(run.checkpoint(4));
  EXPECT_THAT(run_once(run.config, true).notes,
              AllOf(Contains(HasSubstr("step 4 was saved by an earlier version")),
                    Contains("going on from step 4 of 6")));
  EXPECT_EQ(run.model(), run.expected());
}

// Its config is known by train.json, as it always was.
TEST(Resume, ComparesTheConfigOfAnOldRun) {
  StoppedRun run;
  make_old(run.checkpoint(4));
  run.config.optimizer.beta1 = 0.8;
  EXPECT_ERROR("optimizer.beta1 was 0.9, now 0.8", run_once(run.config, true));
}

TEST(Resume, AStateThatLiesIsRefusedByName) {
  const StoppedRun run;
  make_old(run.checkpoint(2));
  make_old(run.checkpoint(4));
  run.keep_copy();
  const std::pair<const char*, const char*> lies[] = {
      {"\"step\": 1000000000,", "checkpoint-000000004: its state.json is one of step 1000000000"},
      {"\"step\": -1,", "step"},
      {"\"step\": \"four\",", "step"},
      {"\"step\": 4, \"format\": 3,", "format 3, of a later version"},
      {"\"step\": 4, \"format\": 2,", "config"}};
  for (const auto& [lie, said] : lies) {
    run.put_back();
    fs::remove_all(run.checkpoint(2));
    const fs::path path = run.checkpoint(4) / "state.json";
    write_bytes(path, replaced(bytes_at(path), "\"step\": 4,", lie));
    EXPECT_ERROR(said, run_once(run.config, true));
  }
  for (const char* lie : {"\"batch\": 999999,", "\"batch\": 9, \"epoch\": 9999999999,"}) {
    run.put_back();
    const fs::path path = run.checkpoint(4) / "state.json";
    std::string state = replaced(bytes_at(path), "\"batch\": 4,", lie);
    if (state.find("9999999999") != state.npos) state = replaced(state, "\"epoch\": 0,", "");
    write_bytes(path, state);
    EXPECT_THAT(
        run_once(run.config, true).notes,
        Contains(AllOf(HasSubstr("checkpoint-000000004 is passed over"), HasSubstr("epoch"))));
  }
}

// Exactly "checkpoint-" and nine digits are the run's own, and its drafts by their full names.
TEST(Resume, LeavesWhatIsNotItsOwnAlone) {
  StoppedRun run;
  const fs::path out = run.config.out;
  const std::vector<std::string> folders = {
      "checkpoint-000000004.bak", "checkpoint-8.bak",      "checkpoint-zzz",
      "checkpoint-00000009",      "checkpoint-0000000099", "checkpoint-00000000a",
      ".qkv-checkpoint-4.old",    ".qkv-best.tmp.bak",     ".qkv-mine.tmp",
      "old-checkpoint-000000009"};
  const std::vector<std::string> files = {"checkpoint-000000099", ".qkv-notes", ".qkv-77-x.tmp",
                                          ".qkv-7-7-7.tmp", ".mine"};
  for (const std::string& name : folders) {
    if (name == "checkpoint-zzz") {
      fs::create_directory(out / name);
    } else {
      fs::copy(run.checkpoint(4), out / name);
    }
  }
  for (const std::string& name : files) write_bytes(out / name, "mine");
  for (const char* ours : {".qkv-checkpoint-000000007.tmp", ".qkv-checkpoint-000000001.old",
                           ".qkv-best.tmp", ".qkv-model.old"}) {
    fs::copy(run.checkpoint(4), out / ours);
  }
  write_bytes(out / ".qkv-77-0.tmp", "half");
  run.config.keep = 1;
  EXPECT_THAT(run_once(run.config, true).notes, Contains("going on from step 4 of 6"));
  for (const std::string& name : folders) {
    ASSERT_TRUE(fs::is_directory(out / name)) << name;
    EXPECT_EQ(verify_checksums((out / name).string()), name != "checkpoint-zzz") << name;
  }
  for (const std::string& name : files) EXPECT_EQ(bytes_at(out / name), "mine") << name;
  std::set<std::string> others;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename();
    if (std::ranges::find(folders, name) == folders.end() &&
        std::ranges::find(files, name) == files.end()) {
      others.insert(name);
    }
  }
  EXPECT_EQ(others, (std::set<std::string>{"cache", "checkpoint-000000006", "metrics.jsonl",
                                           "model", "run.lock", "train.json"}));
}

TEST(Resume, PutsBackWhatAKilledRunHadMovedAside) {
  const StoppedRun run;
  const fs::path out = run.config.out;
  fs::rename(run.checkpoint(4), out / ".qkv-checkpoint-000000004.replaced");
  fs::create_directory(out / ".qkv-checkpoint-000000004.tmp");
  fs::copy(run.checkpoint(2), out / ".qkv-checkpoint-000000002.replaced");
  EXPECT_THAT(run_once(run.config, true).notes, Contains("going on from step 4 of 6"));
  for (const auto& entry : fs::directory_iterator(out)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".qkv-")));
  }
}

// On NFS and some FUSE file systems, where the second evaluation used to end a run.
TEST(Resume, ReplacesFoldersWhereNamesCannotBeExchanged) {
  const StoppedRun run;
  Renames renames = Renames::of_system();
  renames.exchange = [](const char*, const char*) { return EINVAL; };
  RunFolder folder(run.config.out, true, renames);
  const auto model = load_model(run.checkpoint(4).string(), {.writable = true});
  std::vector<Tensor> parameters;
  for (const nn::Parameter& p : nn::parameters(*model)) parameters.push_back(p.value);
  const Optimizer optimizer(parameters);
  const Tokenizer tokenizer = Tokenizer::load(run.config.tokenizer);
  for (const float value : {1.0F, 2.0F, 3.0F}) {
    parameters[0].data<float>()[0] = value;
    folder.save_model("best", *model, optimizer, tokenizer);
    folder.save(*model, optimizer, {.step = 4}, 2);
    const auto best = load_model(run.config.out + "/best");
    EXPECT_EQ(nn::parameters(*best)[0].value.data<float>()[0], value);
    EXPECT_TRUE(verify_checksums(run.checkpoint(4).string()));
    for (const auto& entry : fs::directory_iterator(run.config.out)) {
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".qkv-")));
    }
  }
}

// Nothing in the folder is touched by a process that may not have it.
TEST(Resume, OneProcessTrainsInAFolder) {
  StoppedRun run;
  const Trainer first(run.config, {}, true);
  const fs::path draft = fs::path(run.config.out) / ".qkv-checkpoint-000000006.tmp";
  fs::create_directory(draft);
  for (const bool resume : {false, true}) {
    EXPECT_THAT(testing::error_of([&] { Trainer(run.config, {}, resume); }),
                AllOf(HasSubstr("the run in " + run.config.out + " is in use by process"),
                      HasSubstr("run.lock")));
  }
  EXPECT_TRUE(fs::exists(draft));
}

}  // namespace
}  // namespace qkv

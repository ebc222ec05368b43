#include "train/resume.h"

#include <filesystem>

#include "core/check.h"
#include "io/file.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;

std::string name_of(const std::string& checkpoint) {
  return fs::path(checkpoint).filename().string();
}

// What a checkpoint says of itself. Error where that cannot be trusted.
ReadState trusted_state(const std::string& checkpoint, bool verified) {
  const bool has_checksums = verified && verify_checksums(checkpoint);
  ReadState read = read_state((fs::path(checkpoint) / "state.json").string());
  check(!verified || has_checksums || !read.has_checksums, "{} is missing", kChecksums);
  check(read.state.step == checkpoint_step(name_of(checkpoint)), "its state.json is one of step {}",
        read.state.step);
  return read;
}

// Versions without identities kept the config alone, in the folder of the run.
RunIdentity identity_before(const ResumedRun& run, const ReadState& read) {
  if (read.has_checksums) return read.state.identity;
  run.note(fmt::format(
      "step {} was saved by an earlier version, without checksums: whether it, the data or the "
      "tokenizer have changed since cannot be known",
      read.state.step));
  try {
    return {.config = config_values(read_train_config(run.folder.file("train.json")))};
  } catch (const Error&) {
    return {};
  }
}

std::vector<RunChange> changes_since(const ResumedRun& run, const std::string& checkpoint,
                                     const ReadState& read) {
  constexpr std::uint64_t kModelConfig = 16 << 20;
  std::vector<RunChange> changes = changes_between(identity_before(run, read), run.identity);
  const std::string before =
      read_file((fs::path(checkpoint) / "config.json").string(), kModelConfig);
  for (RunChange& change : changes_of_model(before, run.model.config_text())) {
    changes.push_back(std::move(change));
  }
  return changes;
}

// Error where what has changed since makes this another run.
void check_same_run(const ResumedRun& run, const RunState& state,
                    const std::vector<RunChange>& changes) {
  constexpr std::size_t kMost = 20;
  std::string refused;
  std::size_t count = 0;
  for (const RunChange& change : changes) {
    if (change.allowed || ++count > kMost) continue;
    refused += (refused.empty() ? "" : "; ") + change.text;
  }
  if (count > kMost) refused += fmt::format("; and {} more", count - kMost);
  check(run.force || count == 0,
        "{}: this is not the run that stopped after step {}: {}. Put it back as it was, begin anew "
        "in "
        "another folder, or go on all the same with --force",
        run.folder.path(), state.step, refused);
  check(run.force || state.step <= run.steps,
        "{}: the run is at step {}, the config ends at {}: ask for more steps, or end here with "
        "--force",
        run.folder.path(), state.step, run.steps);
}

// A place that the data do not have is damage, or what `force` makes of other data.
void check_position(const ResumedRun& run, RunState& state) {
  const auto [epoch, batch] = state.position;
  const std::int64_t batches = run.data.batches(epoch);
  if (batch < batches) return;
  check(run.force, "its state.json is of batch {} of an epoch that has {}", batch, batches);
  state.position = {epoch + 1, 0};
}

void apply_changes(const ResumedRun& run, RunState& state, const std::vector<RunChange>& changes) {
  bool forgets_best = false;
  for (const RunChange& change : changes) {
    run.note(fmt::format("from step {} on: {}", state.step + 1, change.text));
    forgets_best = forgets_best || change.affects_evaluation;
  }
  if (!forgets_best) return;
  state.best.reset();
  state.best_step = state.not_better = 0;
}

// Absent, with the reason, where the checkpoint is no good. What is no fault of its own is thrown.
std::optional<RunState> try_checkpoint(const ResumedRun& run, const std::string& checkpoint,
                                       bool verified, std::string& reason) {
  ReadState read;
  std::vector<RunChange> changes;
  try {
    read = trusted_state(checkpoint, verified);
    changes = changes_since(run, checkpoint, read);
  } catch (const Error& error) {
    reason = error.what();
    return {};
  }
  check_same_run(run, read.state, changes);
  try {
    check_position(run, read.state);
    run.folder.load(checkpoint, run.model, run.optimizer);
  } catch (const Error& error) {
    reason = error.what();
    return {};
  }
  apply_changes(run, read.state, changes);
  return std::move(read.state);
}

}  // namespace

std::optional<RunState> resume_run(const ResumedRun& run) {
  const std::vector<std::string> checkpoints = run.folder.checkpoints();
  if (checkpoints.empty()) return {};
  std::string reasons, reason;
  for (const std::string& checkpoint : checkpoints) {
    if (auto state = try_checkpoint(run, checkpoint, true, reason)) return state;
    run.note(fmt::format("{} is passed over: {}", name_of(checkpoint), reason));
    run.folder.pass_over(checkpoint);
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name_of(checkpoint), reason);
  }
  for (const std::string& checkpoint : checkpoints) {
    if (!run.force) break;
    if (auto state = try_checkpoint(run, checkpoint, false, reason)) {
      run.note(fmt::format("{} is used all the same", name_of(checkpoint)));
      return state;
    }
  }
  fail("{}: there is no sound checkpoint to go on from ({})", run.folder.path(), reasons);
}

}  // namespace qkv

#include "train/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/backend.h"
#include "core/check.h"
#include "io/file.h"
#include "io/json.h"
#include "qkv/checkpoint.h"
#include "qkv/ops.h"
#include "qkv/tokenizer.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Named = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kCheckpoint = "checkpoint-";
constexpr std::uint64_t kStateBytes = 64 << 20;

void sync_folder(const fs::path& folder) {
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return;
  ::fsync(opened);
  ::close(opened);
}

// A new folder under a name that nothing looks at, until publish().
class Draft {
 public:
  explicit Draft(const fs::path& target)
      : target_(target),
        draft_(target.parent_path() / (kUnfinished + target.filename().string() + ".tmp")) {
    std::error_code error;
    fs::remove_all(draft_, error);  // of a save that failed
    fs::create_directories(draft_, error);
    check(!error, "{}: cannot be made a folder: {}", draft_.string(), error.message());
  }
  ~Draft() {
    std::error_code ignored;
    fs::remove_all(draft_, ignored);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  std::string path() const { return draft_.string(); }
  std::string file(const char* name) const { return (draft_ / name).string(); }
  void publish() {
    sync_folder(draft_);
    // Old and new change places, so that there is one at any moment; the old one goes with us.
    const bool replaces = fs::exists(target_);
    const int failed = ::renameat2(AT_FDCWD, draft_.c_str(), AT_FDCWD, target_.c_str(),
                                   replaces ? RENAME_EXCHANGE : 0);
    check(failed == 0, "cannot write '{}': {}", target_.string(), std::strerror(errno));
    sync_folder(target_.parent_path());
  }

 private:
  fs::path target_, draft_;
};

std::map<std::uint64_t, std::string> names_of(Model& model) {
  std::map<std::uint64_t, std::string> names;
  for (const nn::Parameter& p : nn::parameters(model)) names[p.value.id()] = p.name;
  return names;
}

// The parts of a state that are defined, by name.
template <class Visit>
void each_part(const OptimizerState& state, Visit&& visit) {
  const std::pair<const char*, const Tensor*> parts[] = {{"m", &state.m},
                                                         {"v", &state.v},
                                                         {"master", &state.master},
                                                         {"ema", &state.ema},
                                                         {"steps", &state.steps}};
  for (const auto& [name, tensor] : parts) {
    if (tensor->defined()) visit(std::string(name), *tensor);
  }
}

void fill_from(const Checkpoint& checkpoint, const std::string& name, const Tensor& tensor,
               const std::string& folder) {
  check(checkpoint.contains(name), "{}: {} is missing; is this the run's own checkpoint?", folder,
        name);
  const Tensor stored = checkpoint[name];
  check(stored.shape() == tensor.shape() && stored.dtype() == tensor.dtype(),
        "{}: {} is {} {}, the run has {} {}", folder, name, stored.dtype(), stored.shape(),
        tensor.dtype(), tensor.shape());
  Tensor target = tensor;
  backend(target.device()).copy(to(stored, target.device()), target);
}

std::string state_text(const RunState& s) {
  ordered_json json{{"step", s.step},
                    {"epoch", s.position.epoch},
                    {"batch", s.position.batch},
                    {"seconds", s.seconds},
                    {"loss", s.loss},
                    {"tokens", s.tokens},
                    {"best_step", s.best_step},
                    {"not_better", s.not_better},
                    {"warned", s.warned}};
  if (s.best) json["best"] = *s.best;
  return json.dump(1) + "\n";
}

RunState read_state(const std::string& path) {
  constexpr std::int64_t kMost = std::int64_t{1} << 52;
  const Config json = Config::parse(read_file(path, kStateBytes), path);
  RunState s;
  s.step = json.integer("step", 0, kMost);
  s.position = {json.integer("epoch", 0, kMost), json.integer("batch", 0, kMost)};
  s.seconds = json.number("seconds", 0, 1e12);
  s.loss = json.number("loss", -1e300, 1e300);
  s.tokens = json.integer("tokens", 0, kMost);
  s.best_step = json.integer("best_step", 0, kMost);
  s.not_better = json.integer("not_better", 0, kMost);
  s.warned = json.numbers("warned", -1e300, 1e300);
  if (json.has("best")) s.best = json.number("best", -1e300, 1e300);
  return s;
}

// What is in a folder under names that begin so, in their order.
std::vector<fs::path> entries_of(const std::string& path, const char* beginning) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().filename().string().starts_with(beginning)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

RunFolder::RunFolder(std::string path, bool resume) : path_(std::move(path)) {
  check(!path_.empty(), "train: the run needs a folder: \"out\" in the config, or --out");
  std::error_code error;
  fs::create_directories(path_, error);
  check(!error, "{}: cannot be made a folder: {}", path_, error.message());
  const bool has_run = newest().has_value() || fs::exists(file("metrics.jsonl"));
  check(resume || !has_run, "{}: holds a run already; go on with --resume, or choose another --out",
        path_);
  for (const fs::path& unfinished : entries_of(path_, kUnfinished)) {
    fs::remove_all(unfinished, error);  // it is in nobody's way where that fails
  }
}

std::string RunFolder::file(const std::string& name) const {
  return (fs::path(path_) / name).string();
}

std::optional<std::string> RunFolder::newest() const {
  const std::vector<fs::path> all = entries_of(path_, kCheckpoint);
  if (all.empty()) return {};
  return all.back().string();
}

void RunFolder::save(Model& model, const Optimizer& optimizer, const RunState& state,
                     std::int64_t keep) {
  const fs::path target = file(fmt::format("{}{:09}", kCheckpoint, state.step));
  if (!fs::exists(target)) {
    Draft draft(target);
    qkv::save_model(model, draft.path());
    Named tensors;
    const auto names = names_of(model);
    for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
      const std::string& name = names.at(optimizer.parameters()[i].id());
      each_part(optimizer.state()[i], [&](const std::string& part, const Tensor& tensor) {
        tensors.emplace_back(part + "." + name, to(tensor, kCpu));
      });
    }
    save_checkpoint(draft.file("optimizer.safetensors"), tensors);
    write_file_atomically(draft.file("state.json"), state_text(state));
    draft.publish();
  }
  const std::vector<fs::path> all = entries_of(path_, kCheckpoint);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    // Renamed first: a half removed checkpoint must not look like one.
    const fs::path gone = file(kUnfinished + all[i].filename().string() + ".old");
    std::error_code ignored;
    fs::rename(all[i], gone, ignored);
    fs::remove_all(gone, ignored);
  }
}

RunState RunFolder::load(const std::string& checkpoint, Model& model, Optimizer& optimizer) {
  const fs::path folder(checkpoint);
  const Checkpoint weights = Checkpoint::open((folder / "model.safetensors").string());
  for (const nn::Parameter& p : nn::parameters(model)) {
    fill_from(weights, p.name, p.value, checkpoint);
  }
  const Checkpoint states = Checkpoint::open((folder / "optimizer.safetensors").string());
  const auto names = names_of(model);
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const std::string& name = names.at(optimizer.parameters()[i].id());
    each_part(optimizer.state()[i], [&](const std::string& part, const Tensor& tensor) {
      fill_from(states, part + "." + name, tensor, checkpoint);
    });
  }
  return read_state((folder / "state.json").string());
}

void RunFolder::save_model(const std::string& name, Model& model, const Optimizer& optimizer,
                           const std::string& tokenizer) {
  std::map<std::uint64_t, Tensor> best;  // of each parameter: what to write for it
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const OptimizerState& state = optimizer.state()[i];
    const Tensor& parameter = optimizer.parameters()[i];
    best[parameter.id()] = state.ema.defined()      ? state.ema
                           : state.master.defined() ? state.master
                                                    : parameter;
  }
  Named tensors;
  model.visit(nn::Visitor([&](const std::string& key, Tensor& parameter, const Shape&) {
    const auto found = best.find(parameter.id());
    tensors.emplace_back(key, to(found == best.end() ? parameter : found->second, kCpu));
  }));
  Draft draft(file(name));
  save_checkpoint(draft.file("model.safetensors"), tensors);
  write_file_atomically(draft.file("config.json"), model.config_text());
  Tokenizer::load(tokenizer).save(draft.file("tokenizer.json"));
  draft.publish();
}

void RunFolder::append_metrics(const std::string& line) {
  std::FILE* opened = std::fopen(file("metrics.jsonl").c_str(), "ae");
  check(opened != nullptr, "cannot write '{}': {}", file("metrics.jsonl"), std::strerror(errno));
  const std::string text = line + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), opened) == text.size();
  const bool closed = std::fclose(opened) == 0;
  check(written && closed, "cannot write '{}': {}", file("metrics.jsonl"), std::strerror(errno));
}

void RunFolder::cut_metrics(std::int64_t step) {
  constexpr std::uint64_t kMost = std::uint64_t{4} << 30;
  const std::string path = file("metrics.jsonl");
  if (!fs::exists(path)) return;
  const std::string all = read_file(path, kMost);
  std::string kept;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = all.find('\n', begin);
    if (end == std::string::npos) break;  // cut short when the run was killed
    const std::string line = all.substr(begin, end - begin);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || json.value("step", std::int64_t{0}) > step) break;
    kept += line + "\n";
    begin = end + 1;
  }
  write_file_atomically(path, kept);
}

}  // namespace qkv

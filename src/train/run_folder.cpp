#include "train/run_folder.h"

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
#include "train/finite.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Named = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kCheckpoint = "checkpoint-";

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

void fill_from(const Checkpoint& checkpoint, const std::string& name, const Tensor& tensor) {
  check(checkpoint.contains(name), "{} is missing; is this the run's own checkpoint?", name);
  const Tensor stored = checkpoint[name];
  check(stored.shape() == tensor.shape() && stored.dtype() == tensor.dtype(),
        "{} is {} {}, the run has {} {}", name, stored.dtype(), stored.shape(), tensor.dtype(),
        tensor.shape());
  check(is_finite(stored), "{} is not finite", name);
  Tensor target = tensor;
  backend(target.device()).copy(to(stored, target.device()), target);
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Of write_file_atomically: ".qkv-77-0.tmp".
bool is_draft_of_file(std::string_view name) {
  const std::string_view begin = kUnfinished, end = ".tmp";
  if (!name.starts_with(begin) || !name.ends_with(end)) return false;
  name = name.substr(begin.size(), name.size() - begin.size() - end.size());
  const std::size_t middle = name.find('-');
  return middle != name.npos && is_digits(name.substr(0, middle)) &&
         is_digits(name.substr(middle + 1));
}

// The folder that `name` is a draft or a remainder of, where it is one of a run's own.
std::optional<std::string> folder_of_unfinished(const std::string& name) {
  const std::size_t begin = std::string_view(kUnfinished).size(), end = name.rfind('.');
  if (!name.starts_with(kUnfinished) || end < begin) return {};
  const std::string target = name.substr(begin, end - begin);
  if (target != "best" && target != "model" && !checkpoint_step(target)) return {};
  return target;
}

// Made before it is locked; nothing in it is touched.
std::string made_folder(const std::string& path) {
  check(!path.empty(), "train: the run needs a folder: \"out\" in the config, or --out");
  std::error_code error;
  fs::create_directories(path, error);
  check(!error, "{}: cannot be made a folder: {}", path, error.message());
  return (fs::path(path) / "run.lock").string();
}

// Name and tensor of all that a checkpoint has, as messages call it: refuses what is not finite.
void check_finite(const Named& tensors, std::int64_t step,
                  const std::optional<std::string>& last_good) {
  for (const auto& [name, tensor] : tensors) {
    check(is_finite(tensor), "train: after step {} {} is not finite, so no checkpoint is made. {}",
          step, name,
          last_good ? "The last good checkpoint is " + *last_good
                    : std::string("There is no checkpoint yet"));
  }
}

}  // namespace

std::optional<std::int64_t> checkpoint_step(const std::string& name) {
  constexpr std::size_t kDigits = 9;
  const std::string_view begin = kCheckpoint;
  if (!name.starts_with(begin) || name.size() != begin.size() + kDigits) return {};
  const std::string digits = name.substr(begin.size());
  if (!is_digits(digits)) return {};
  return std::stoll(digits);
}

RunFolder::RunFolder(std::string path, bool resume, Renames renames)
    : path_(std::move(path)),
      renames_(std::move(renames)),
      lock_(made_folder(path_), "the run in " + path_) {
  const bool has_run = !checkpoints().empty() || fs::exists(file("metrics.jsonl"));
  check(resume || !has_run, "{}: holds a run already; go on with --resume, or choose another --out",
        path_);
  remove_unfinished();
}

void RunFolder::remove_unfinished() {
  for (const std::string& name : names_in(path_)) {
    std::error_code ignored;
    if (const auto target = folder_of_unfinished(name)) {
      recover_folder(file(*target));
      // What cannot be removed does no harm.
      if (is_draft_of(name, *target)) fs::remove_all(file(name), ignored);
    } else if (is_draft_of_file(name)) {
      fs::remove(file(name), ignored);
    }
  }
}

std::string RunFolder::file(const std::string& name) const {
  return (fs::path(path_) / name).string();
}

std::vector<std::string> RunFolder::checkpoints() const {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const std::string& name : names_in(path_)) {
    if (checkpoint_step(name) && fs::is_directory(file(name), ignored)) found.push_back(file(name));
  }
  std::ranges::reverse(found);
  return found;
}

void RunFolder::save(Model& model, const Optimizer& optimizer, const RunState& state,
                     std::int64_t keep) {
  for (const nn::Parameter& p : nn::parameters(model)) {
    check_finite({{p.name, p.value}}, state.step, last_good_);
  }
  Named tensors;
  const auto names = names_of(model);
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const std::string& name = names.at(optimizer.parameters()[i].id());
    each_part(optimizer.state()[i], [&](const std::string& part, const Tensor& tensor) {
      tensors.emplace_back(part + "." + name, to(tensor, kCpu));
    });
  }
  check_finite(tensors, state.step, last_good_);
  const std::string target = file(fmt::format("{}{:09}", kCheckpoint, state.step));
  {
    DraftFolder draft(target, renames_);
    qkv::save_model(model, draft.path());
    save_checkpoint(draft.file("optimizer.safetensors"), tensors);
    write_file_atomically(draft.file("state.json"), state_text(state));
    write_checksums(draft.path());
    draft.publish();
  }
  last_good_ = target;
  std::erase(passed_over_, target);  // it was replaced
  prune(keep);
}

void RunFolder::prune(std::int64_t keep) {
  for (const std::string& checkpoint : passed_over_) remove_folder(checkpoint);
  passed_over_.clear();
  const std::vector<std::string> all = checkpoints();
  for (auto i = static_cast<std::size_t>(keep); i < all.size(); ++i) remove_folder(all[i]);
}

void RunFolder::load(const std::string& checkpoint, Model& model, Optimizer& optimizer) {
  const fs::path folder(checkpoint);
  const Checkpoint weights = Checkpoint::open((folder / "model.safetensors").string());
  for (const nn::Parameter& p : nn::parameters(model)) fill_from(weights, p.name, p.value);
  const Checkpoint states = Checkpoint::open((folder / "optimizer.safetensors").string());
  const auto names = names_of(model);
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const std::string& name = names.at(optimizer.parameters()[i].id());
    each_part(optimizer.state()[i], [&](const std::string& part, const Tensor& tensor) {
      fill_from(states, part + "." + name, tensor);
    });
  }
  last_good_ = checkpoint;
  std::erase(passed_over_, checkpoint);
}

void RunFolder::save_model(const std::string& name, Model& model, const Optimizer& optimizer,
                           const Tokenizer& tokenizer) {
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
  DraftFolder draft(file(name), renames_);
  save_checkpoint(draft.file("model.safetensors"), tensors);
  write_file_atomically(draft.file("config.json"), model.config_text());
  tokenizer.save(draft.file("tokenizer.json"));
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
    if (!json.is_object()) break;
    const auto logged = json.find("step");
    if (logged != json.end() && (!logged->is_number() || logged->get<double>() > step)) break;
    kept += line + "\n";
    begin = end + 1;
  }
  write_file_atomically(path, kept);
}

}  // namespace qkv

// A tiny run that is stopped, tampered with and taken up again.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/tiny_run.h"

namespace qkv::test {

struct TakenUp {
  TrainResult result;
  std::vector<std::string> notes;
  std::vector<double> rates;  // the learning rate of each report

  std::string all_notes() const {
    std::string all;
    for (const std::string& note : notes) all += note + "\n";
    return all;
  }
};

inline TakenUp run_once(const TrainConfig& config, bool resume = false, bool force = false) {
  TakenUp run;
  TrainEvents events;
  events.on_note = [&](const std::string& note) { run.notes.push_back(note); };
  events.on_step = [&](const StepReport& report) { run.rates.push_back(report.lr); };
  run.result = Trainer(config, events, resume, force).run();
  return run;
}

inline std::string bytes_at(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// In place: some file systems flush a file that was shortened and written anew, which is slow.
inline void flip_bit(const std::filesystem::path& path, std::uintmax_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(bit / 8);
  const int byte = file.seekg(at).get();
  file.seekp(at).put(static_cast<char>(byte ^ 1 << bit % 8));
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  return at == text.npos ? "'" + from + "' is not there" : text.replace(at, from.size(), to);
}

// What a run of language-model has after four steps: checkpoints of steps 2 and 4.
class StoppedRun {
 public:
  StoppedRun() {
    config = tiny.config(Task::language_model);
    config.out = tiny.file("run");
    config.steps = 4;
    config.save_every = 2;
    config.log_every = 1;
    config.keep = 2;
    config.schedule = {.kind = ScheduleKind::constant};
    run_once(config);
    std::filesystem::remove_all(config.out + "/model");
    config.steps = 6;
  }

  std::filesystem::path checkpoint(int step) const {
    return config.out + "/checkpoint-00000000" + std::to_string(step);
  }
  // What six steps give without a stop.
  std::string expected() const {
    TrainConfig whole = config;
    whole.out = tiny.file("whole");
    std::filesystem::remove_all(whole.out);
    return bytes_at(run_once(whole).result.model + "/model.safetensors");
  }
  std::string model() const { return bytes_at(config.out + "/model/model.safetensors"); }

  // The run as it was, for another turn.
  void keep_copy() const { copy_run(config.out, tiny.file("copy")); }
  void put_back() const { copy_run(tiny.file("copy"), config.out); }

  TinyRun tiny;
  TrainConfig config;

 private:
  static void copy_run(const std::string& from, const std::string& to) {
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  }
};

}  // namespace qkv::test

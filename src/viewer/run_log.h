// The curves of one training run, out of a metrics.jsonl that is written while we read.
//
// Memory is bounded however long a run is: some 262144 points, 4096 evaluations and as many
// warnings, health of 4 MB, and one line of 8 MB that is not complete yet. Of what is more, every
// other one is let go (of warnings the first).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "viewer/picture_values.h"
#include "viewer/run_line.h"

namespace qkv::viewer {

inline constexpr std::size_t kLongestRunLine = 8 << 20;  // bytes; longer ones are passed over

// A number as JSON: a whole one with all its digits, null for what a float cannot hold.
Json run_number(double value);

class RunLog {
 public:
  // Reads what was appended to the open file since, at most `most` bytes of it, and all anew where
  // it is another file or was written anew. `name` stands for it in messages.
  void update(int file, const std::string& name, std::uint64_t most);
  // Curves of at most a thousand points, evaluations, warnings, and some of the health reports.
  Json to_json() const;

 private:
  void take_bytes(std::string_view bytes, const std::string& name);
  void end_line(const std::string& name);
  void take(RunLine line);
  void take_health(RunHealth health);
  void complain(const std::string& problem);
  void forget_from(double step);
  bool is_continued(int file, std::uint64_t size) const;

  std::uint64_t offset_ = 0, size_ = 0, file_id_ = 0, device_ = 0;
  std::string last_bytes_;  // read, the last few of them: are they still there?
  std::string rest_;        // a line that is not complete yet
  bool skipping_ = false;   // the rest of a line that is too long
  std::uint64_t lines_ = 0;

  // Each in the order of its steps.
  std::vector<RunPoint> points_;
  std::vector<RunEvaluation> evaluations_;
  std::deque<RunWarning> warnings_;
  std::vector<RunHealth> health_;
  std::uint64_t health_stride_ = 1, health_seen_ = 0;
  double last_step_ = -1;
  std::int64_t unreadable_ = 0;
  std::string first_problem_;
};

}  // namespace qkv::viewer

#include "train/run_state.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/json.h"
#include "io/shown.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::uint64_t kStateBytes = 64 << 20, kChecksumBytes = 1 << 20;
// 1, of earlier versions, is not written: it had neither identity nor checksums.
constexpr std::int64_t kStateFormat = 2;
constexpr double kLargest = 1e300;

// JSON has no infinity, which a head's largest logit can be.
double bounded(double value) {
  return std::isnan(value) ? 0 : std::clamp(value, -kLargest, kLargest);
}

ordered_json identity_json(const std::vector<RunIdentity::File>& files) {
  ordered_json list = ordered_json::array();
  for (const RunIdentity::File& file : files) {
    list.push_back({{"path", file.path}, {"prefix", file.prefix}, {"tokens", file.tokens}});
  }
  return list;
}

std::vector<RunIdentity::File> read_files(const Config& json, const char* key) {
  std::vector<RunIdentity::File> files;
  for (const Config& file : json.objects(key)) {
    files.push_back({file.text("path"), file.text("prefix"), file.text("tokens")});
  }
  return files;
}

struct ChecksumLine {
  std::string checksum, name;
};

// Lines of "CHECKSUM  NAME", and at the end "# CHECKSUM" of all lines before.
std::vector<ChecksumLine> read_checksums(const std::string& path) {
  const std::string text = read_file(path, kChecksumBytes);
  const std::size_t last = text.rfind("# ");
  check(last != text.npos &&
            text.substr(last) == "# " + checksum_text(checksum_of(text.substr(0, last))) + "\n",
        "{} is damaged: its last line is not the checksum of the others", kChecksums);
  constexpr std::size_t kDigits = 16;
  std::vector<ChecksumLine> lines;
  for (std::size_t begin = 0; begin < last;) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    check(line.size() > kDigits + 2 && line.find('/') == line.npos,
          "{} is damaged: it has a line that is no checksum", kChecksums);
    lines.push_back({line.substr(0, kDigits), line.substr(kDigits + 2)});
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string state_text(const RunState& s) {
  std::vector<double> warned;
  for (const double value : s.warned) warned.push_back(bounded(value));
  ordered_json json{{"format", kStateFormat},     {"step", s.step},
                    {"epoch", s.position.epoch},  {"batch", s.position.batch},
                    {"seconds", s.seconds},       {"loss", s.loss},
                    {"tokens", s.tokens},         {"best_step", s.best_step},
                    {"not_better", s.not_better}, {"warned", warned}};
  if (s.best) json["best"] = *s.best;
  json["config"] = s.identity.config;
  json["tokenizer"] = s.identity.tokenizer;
  json["train"] = identity_json(s.identity.train);
  json["valid"] = identity_json(s.identity.valid);
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ReadState read_state(const std::string& path) {
  constexpr std::int64_t kMost = std::int64_t{1} << 52;
  const std::string name = fs::path(path).filename().string();
  const Config json = Config::parse(read_file(path, kStateBytes), name);
  const std::int64_t format = json.integer_or("format", 1, 1, kMost);
  check(format <= kStateFormat, "{} has format {}, of a later version; this one reads up to {}",
        name, format, kStateFormat);
  RunState s;
  s.step = json.integer("step", 0, kMost);
  s.position = {json.integer("epoch", 0, kMost), json.integer("batch", 0, kMost)};
  s.seconds = json.number("seconds", 0, 1e12);
  s.loss = json.number("loss", -kLargest, kLargest);
  s.tokens = json.integer("tokens", 0, kMost);
  s.best_step = json.integer("best_step", 0, kMost);
  s.not_better = json.integer("not_better", 0, kMost);
  s.warned = json.numbers("warned", -kLargest, kLargest);
  if (json.has("best")) s.best = json.number("best", -kLargest, kLargest);
  if (format == 1) return {std::move(s), false};
  s.identity = {.config = json.object("config").all_texts(),
                .tokenizer = json.text("tokenizer"),
                .train = read_files(json, "train"),
                .valid = read_files(json, "valid")};
  return {std::move(s), true};
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  check(!error, "cannot read '{}': {}", folder, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

void write_checksums(const std::string& folder) {
  std::string text;
  for (const std::string& name : names_in(folder)) {
    const std::uint64_t checksum = checksum_of_file((fs::path(folder) / name).string());
    text += fmt::format("{}  {}\n", checksum_text(checksum), name);
  }
  text += fmt::format("# {}\n", checksum_text(checksum_of(text)));
  write_file_atomically((fs::path(folder) / kChecksums).string(), text);
}

bool verify_checksums(const std::string& folder) {
  const fs::path path = fs::path(folder) / kChecksums;
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return false;
  for (const ChecksumLine& line : read_checksums(path.string())) {
    const std::string found =
        checksum_text(checksum_of_file((fs::path(folder) / line.name).string()));
    check(found == line.checksum, "{} is damaged: its checksum is {}, written was {}",
          shown_name(line.name), found, line.checksum);
  }
  return true;
}

}  // namespace qkv

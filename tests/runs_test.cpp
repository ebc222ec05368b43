// Runs are read as they are found: half written, written anew, wrong in every line, or not runs at
// all. None of them hides another, leads out of its folder, or takes more than its size.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "support/mutate.h"
#include "support/temporary_folder.h"
#include "viewer/runs.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using viewer::RunFolder;

constexpr const char* kLine = "{\"step\": 1, \"loss\": 5.5}\n";

class ViewerRuns : public ::testing::Test {
 protected:
  fs::path path(const std::string& name) const {
    return fs::path(temporary_.path()) / "runs" / name;
  }
  fs::path metrics(const std::string& name) const { return path(name) / "metrics.jsonl"; }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories(path(name));
    std::ofstream(metrics(name), std::ios::binary) << text;
  }
  void append(const std::string& name, const std::string& text) {
    std::ofstream(metrics(name), std::ios::binary | std::ios::app) << text;
  }
  RunFolder folder() {
    fs::create_directories(path(""));
    return RunFolder(path("").string());
  }
  // What the answers say, as whoever asked reads them.
  static nlohmann::json list(RunFolder& runs) {
    return nlohmann::json::parse(viewer::dumped(runs.list()));
  }
  static nlohmann::json read(RunFolder& runs, const std::string& name) {
    const auto run = runs.read(name);
    return run ? nlohmann::json::parse(viewer::dumped(*run)) : nlohmann::json();
  }
  nlohmann::json read_lines(const std::string& lines) {
    write("one", lines);
    RunFolder runs = folder();
    return read(runs, "one");
  }

  testing::TemporaryFolder temporary_;
};

TEST_F(ViewerRuns, OneThatCannotBeReadHidesNoOther) {
  write("good", kLine);
  fs::create_directories(path("pipe"));
  ASSERT_EQ(::mkfifo(metrics("pipe").c_str(), 0600), 0);
  fs::create_directories(metrics("folder"));
  fs::create_directories(path("link"));
  fs::create_symlink("../good/metrics.jsonl", metrics("link"));
  fs::create_directories(path("device"));
  fs::create_symlink("/dev/zero", metrics("device"));
  write("wrong", "{\"step\": \"x\"}\n[]\n3\n\xff\n");
  fs::create_directories(path("no-run"));
  std::ofstream(path("file")) << "no folder";
  RunFolder runs = folder();
  std::map<std::string, nlohmann::json> by_name;
  const auto listed = list(runs);
  for (const auto& run : listed["runs"]) by_name[run["name"]] = run;
  EXPECT_EQ(by_name.size(), 6u);
  EXPECT_EQ(by_name["good"]["loss"], 5.5);
  EXPECT_FALSE(by_name["wrong"].contains("error"));
  EXPECT_FALSE(by_name["wrong"].contains("step"));
  for (const char* name : {"pipe", "folder"}) {
    EXPECT_THAT(by_name[name]["error"].get<std::string>(), HasSubstr("not a regular file"));
    EXPECT_ERROR("not a regular file", runs.read(name));
  }
  for (const char* name : {"link", "device"}) {
    EXPECT_THAT(by_name[name]["error"].get<std::string>(), HasSubstr("links are not followed"));
    EXPECT_ERROR("links are not followed", runs.read(name));
  }
  EXPECT_FALSE(runs.read("no-run"));
  EXPECT_FALSE(runs.read("file"));
  EXPECT_EQ(read(runs, "wrong")["unreadable"], 4);
  EXPECT_THAT(read(runs, "wrong")["first_unreadable"].get<std::string>(),
              HasSubstr("wrong/metrics.jsonl line 1: 'step' must be a number"));
}

TEST_F(ViewerRuns, NothingOutsideOfTheFolderIsRead) {
  const fs::path secret = fs::path(temporary_.path()) / "secret";
  fs::create_directories(secret);
  std::ofstream(secret / "metrics.jsonl") << kLine;
  write("inside", kLine);
  fs::create_directory_symlink(secret, path("out"));
  fs::create_directory_symlink("inside", path("latest"));
  RunFolder runs = folder();
  const auto listed = list(runs);
  EXPECT_EQ(listed["runs"].size(), 3u);
  for (const auto& run : listed["runs"]) {
    EXPECT_EQ(run.contains("step"), run["name"] == "inside") << run;
    EXPECT_EQ(run.contains("error"), run["name"] != "inside") << run;
  }
  EXPECT_ERROR("links are not followed", runs.read("out"));
  for (const char* name : {"../secret", "..", ".", "", "inside/../../secret", "/etc"}) {
    EXPECT_ERROR("not a path", runs.read(name));
  }
}

TEST_F(ViewerRuns, WhatIsListedCanBeRead) {
  const std::vector<std::string> names{"a b", "a%20b", "\x1b[2J", "line\nbreak",        "..a",
                                       "-",   "日本",  "\"<&>\\", std::string(255, 'n')};
  for (const std::string& name : names) write(name, kLine);
  write("caf\xe9", kLine);
  RunFolder runs = folder();
  std::size_t readable = 0;
  const auto listed = list(runs);
  for (const auto& run : listed["runs"]) {
    if (run.contains("error")) {
      EXPECT_EQ(run["name"], "caf\xEF\xBF\xBD");
      EXPECT_THAT(run["error"].get<std::string>(), HasSubstr("not UTF-8"));
      continue;
    }
    ++readable;
    EXPECT_EQ(read(runs, run["name"])["points"]["step"].size(), 1u) << run;
  }
  EXPECT_EQ(readable, names.size());
  EXPECT_ERROR("not the name of a run", runs.read("caf\xe9"));
}

TEST_F(ViewerRuns, OfManyFoldersTheLastAreLookedAt) {
  for (std::size_t i = 0; i < viewer::kMostRuns + 3; ++i) {
    fs::create_directories(path(std::to_string(100000 + i)));
  }
  write("100001", kLine);
  write("100005", kLine);
  RunFolder runs = folder();
  const auto json = list(runs);
  ASSERT_EQ(json["runs"].size(), 1u);
  EXPECT_EQ(json["runs"][0]["name"], "100005");
  EXPECT_EQ(json["left_out"], 3);
}

TEST_F(ViewerRuns, TheListSaysWhatTheEndOfAFileSays) {
  const std::string health = R"({"step": 9, "loss": 2.5, "health": [)" + std::string(300'000, ' ') +
                             R"({"name": "a", "head": 0}]})";
  write("long", kLine + health + "\n" + R"({"step": 9, "eval": {"loss": 1}})" + "\nno line\n{\"st");
  write("empty", "");
  write("unended", R"({"step": 1, "loss": 5.5})");
  RunFolder runs = folder();
  for (int again = 0; again < 2; ++again) {
    const nlohmann::json json = list(runs)["runs"];
    ASSERT_EQ(json.size(), 3u);
    EXPECT_FALSE(json[0].contains("step"));
    EXPECT_EQ(json[1]["step"], 9);
    EXPECT_EQ(json[1]["loss"], 2.5);
    EXPECT_FALSE(json[2].contains("step"));
  }
  append("empty", "{\"step\": 3, \"loss\": \"nan\"}\n");
  EXPECT_EQ(list(runs)["runs"][0]["step"], 3);
  EXPECT_TRUE(list(runs)["runs"][0]["loss"].is_null());
}

TEST_F(ViewerRuns, WhatIsWrongInALineTakesNothingElseWithIt) {
  const auto expect = [this](const std::string& line, const std::string& why) {
    SCOPED_TRACE(line.substr(0, 100));
    const auto json = read_lines(kLine + line + "\n{\"step\": 3, \"loss\": 1}\n");
    EXPECT_EQ(json["unreadable"], 1);
    EXPECT_THAT(json["first_unreadable"].get<std::string>(),
                HasSubstr("one/metrics.jsonl line 2: " + why));
    EXPECT_EQ(json["points"]["step"].front(), 1);
    EXPECT_EQ(json["points"]["step"].back(), 3);
  };
  for (const char* step : {"\"x\"", "null", "-1", "[1]", "1e308", "true"}) {
    expect(std::string(R"({"loss": 1, "step": )") + step + "}", "'step' must be");
  }
  expect(R"({"loss": 1})", "'step' must be");
  for (const char* line : {"NaN", R"({"step": NaN})", R"({"step": 2, "loss": Infinity})", "{",
                           "\xff", "{\"step\": 2, \"warning\": \"\xe2\x82\"}", "{} {}"}) {
    expect(line, "not valid JSON");
  }
  expect(R"({"step": 2, "loss": 1e400})", "a number is out of range");
  expect(R"({"step": 2, "step": 2})", "the key 'step' appears twice");
  expect(std::string(100'000, '['), "more than 64 levels");
  for (const char* loss : {"\"x\"", "[]", "{}", "true"}) {
    expect(std::string(R"({"step": 2, "loss": )") + loss + "}", "'loss' must be a number");
  }
  expect(R"({"step": 2, "loss": 2, "lr": "fast"})", "'lr' must be a number");
  expect(R"({"step": 2, "loss": 2, "eval": [1]})", "'eval' must be an object");
  expect(R"({"step": 2, "loss": 2, "eval": {"bleu": "good"}})", "'bleu' must be a number");
  expect(R"({"step": 2, "loss": 2, "warning": ["a"]})", "'warning' must be a string");
  expect(R"({"step": 2, "loss": 2, "health": {"name": "a"}})", "'health' must be a list");
  for (const char* entry : {"3", "[]", "{}", R"({"name": 3, "head": 0})", R"({"name": "a"})",
                            R"({"name": "a", "head": -1})", R"({"name": "a", "head": 0.5})",
                            R"({"name": "a", "head": 1e9})", R"({"name": "a", "head": "x"})",
                            R"({"name": "a", "head": 0, "entropy": {}})"}) {
    expect(std::string(R"({"step": 2, "loss": 2, "health": [)") + entry + "]}", "");
  }
  const auto json = read_lines(R"({"step": 2, "loss": 2, "eval": 3, "warning": "w"})"
                               "\n");
  EXPECT_EQ(json["points"]["loss"][0], 2);
  EXPECT_EQ(json["warnings"][0]["text"], "w");
}

TEST_F(ViewerRuns, ATableIsBoundedByItsLine) {
  // 829 kB that ask for 30 thousand rows of 16384 heads.
  std::string line = R"({"step": 1, "loss": 2, "health": [)";
  for (int i = 0; i < 22'000; ++i) {
    line += (i == 0 ? "" : ",") + ("{\"name\":\"" + std::to_string(i)) +
            R"(","head":16383,"entropy":1})";
  }
  const auto json = read_lines(line + "]}\n");
  EXPECT_TRUE(json["health"].empty());
  EXPECT_EQ(json["unreadable"], 1);
  EXPECT_EQ(json["points"]["loss"][0], 2);

  // The worst heads alone, as a large model would tell them.
  line = R"({"step": 1, "health": [)";
  for (int i = 0; i < 40; ++i) {
    line +=
        (i == 0 ? "" : ",") + ("{\"name\":\"" + std::to_string(i)) + R"(","head":127,"entropy":1})";
  }
  const auto sparse = read_lines(line + "]}\n");
  EXPECT_EQ(sparse["unreadable"], 0);
  EXPECT_EQ(sparse["health"][0]["entropy"][39].size(), 128u);
  EXPECT_EQ(sparse["health"][0]["entropy"][39][127], 1);
  EXPECT_FALSE(sparse["health"][0].contains("max_logit"));
}

TEST_F(ViewerRuns, ManyNamesAreReadInTime) {
  std::string entries, keys;
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = std::to_string(i);
    entries += (i == 0 ? "" : ",") + ("{\"name\":\"" + name) + R"(","head":0,"entropy":1})";
    keys += ",\"" + name + "\":1";
  }
  const auto json = read_lines(R"({"step": 1, "health": [)" + entries + "]}\n" +
                               R"({"step": 2, "loss": 3)" + keys + "}\n");
  EXPECT_EQ(json["health"][0]["names"].size(), 20'000u);
  EXPECT_EQ(json["health"][0]["entropy"][19'999], (std::vector<double>{1}));
  EXPECT_EQ(json["points"]["loss"][0], 3);
}

TEST_F(ViewerRuns, MemoryIsBoundedOverALongRun) {
  std::string lines;
  for (int i = 0; i < 5000; ++i) {
    lines += "{\"step\": " + std::to_string(i) + R"(, "eval": {"loss": 1}, "warning": ")" +
             (i == 4999 ? std::string(999, 'a') + "\xe2\x82\xac" + std::string(999, 'b')
                        : std::to_string(i)) +
             "\"}\n";
  }
  for (int i = 5000; i < 5040; ++i) {  // reports of 1 MB: only some of them
    lines += "{\"step\": " + std::to_string(i) + R"(, "health": [)";
    for (int head = 0; head < 16; ++head) {
      lines += (head == 0 ? "" : ",") + ("{\"name\":\"" + std::to_string(head)) +
               R"(","head":4095,"entropy":1,"variance":1,"max_logit":1,"saturation":1})";
    }
    lines += "]}\n";
  }
  const auto json = read_lines(lines);
  EXPECT_EQ(json["warnings"].size(), 4096u);
  EXPECT_EQ(json["warnings"].back()["text"], std::string(999, 'a') + "…");
  EXPECT_LE(json["evaluations"].size(), 4096u);
  EXPECT_GE(json["evaluations"].size(), 2048u);
  EXPECT_LE(json["health"].size(), 4u);
  EXPECT_GE(json["health"].size(), 1u);
}

TEST_F(ViewerRuns, StepsKeepTheirDigits) {
  const auto json = read_lines(
      "{\"step\": 20000001, \"loss\": 0.1, \"seconds\": 1e300}\n"
      "{\"step\": 9007199254740991, \"loss\": 1e39}\n");
  EXPECT_EQ(json["points"]["step"], (std::vector<std::int64_t>{20000001, 9007199254740991}));
  EXPECT_EQ(json["points"]["loss"][0].dump(), "0.1");
  EXPECT_TRUE(json["points"]["loss"][1].is_null());
  EXPECT_TRUE(json["points"]["seconds"][0].is_null());
}

TEST_F(ViewerRuns, WhatWasReadIsNotReadAgain) {
  write("one", "{\"step\": 1, \"loss\": 5.5}\n" + std::string(300, ' ') + "\n");
  RunFolder runs = folder();
  EXPECT_EQ(read(runs, "one")["points"]["loss"][0], 5.5);
  std::fstream file(metrics("one"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(20);
  file << "7" << std::flush;  // where nothing looks any more
  append("one", "{\"step\": 2, \"loss\": 4}\n");
  EXPECT_EQ(read(runs, "one")["points"]["loss"], (std::vector<double>{5.5, 4}));
}

TEST_F(ViewerRuns, AFileThatIsWrittenAnewIsReadAnew) {
  write("one", "{\"step\": 1, \"loss\": 5.5}\n{\"step\": 2, \"loss\": 5}\n");
  RunFolder runs = folder();
  ASSERT_EQ(read(runs, "one")["points"]["loss"].size(), 2u);
  write("one", kLine);  // shorter
  EXPECT_EQ(read(runs, "one")["points"]["loss"], (std::vector<double>{5.5}));
  write("one", "{\"step\": 1, \"loss\": 3.5}\n");  // as long, the same file
  EXPECT_EQ(read(runs, "one")["points"]["loss"], (std::vector<double>{3.5}));
  write("one", "{\"step\": 7, \"loss\": 3.5}\n{\"step\": 8, \"loss\": 3.5}\n");  // longer
  EXPECT_EQ(read(runs, "one")["points"]["step"], (std::vector<double>{7, 8}));
  write("one", "");
  EXPECT_TRUE(read(runs, "one")["points"]["step"].empty());
  fs::remove(metrics("one"));
  EXPECT_FALSE(runs.read("one"));
  EXPECT_TRUE(list(runs)["runs"].empty());
}

TEST_F(ViewerRuns, LinesComeInPieces) {
  const std::string text = R"({"step": 1, "loss": 2, "warning": "größer: €"})"
                           "\n"
                           R"({"step": 2, "loss": 1})"
                           "\n";
  write("one", "");
  RunFolder runs = folder();
  for (const char byte : text) {
    append("one", std::string(1, byte));
    EXPECT_EQ(read(runs, "one")["unreadable"], 0);
  }
  const auto json = read(runs, "one");
  EXPECT_EQ(json["warnings"][0]["text"], "größer: €");
  EXPECT_EQ(json["points"]["step"], (std::vector<int>{1, 2}));
}

TEST_F(ViewerRuns, LinesThatAreTooLongArePassedOver) {
  const std::string longest(viewer::kLongestRunLine + 1, ' ');
  const auto json = read_lines(kLine + longest + "\n" + longest + longest + "\n" +
                               "{\"step\": 2, \"loss\": 4}\n");
  EXPECT_EQ(json["points"]["step"], (std::vector<int>{1, 2}));
  EXPECT_EQ(json["unreadable"], 2);
  EXPECT_THAT(json["first_unreadable"].get<std::string>(), HasSubstr("line 2: more than 8388608"));
}

// tests/fuzz looks further where there is time.
TEST_F(ViewerRuns, DamagedLinesAreReadOrCounted) {
  testing::Mutator mutate(3);
  const std::string line =
      R"({"step": 4, "loss": 4.2, "lr": 0.1, "eval": {"loss": 4, "bleu": 1}, "warning": "w", )"
      R"("health": [{"name": "a", "head": 0, "entropy": 1}, {"name": "b", "head": 2}]})";
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += mutate(line) + "\n";
  const auto json = read_lines(lines);
  EXPECT_GT(json["unreadable"], 1000);
  EXPECT_TRUE(json["points"]["step"].is_array());
}

}  // namespace
}  // namespace qkv

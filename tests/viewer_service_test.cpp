// What the viewer answers: the API, its limits, and that nothing outside gets in or out.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "qkv/viewer.h"
#include "support/goldens.h"
#include "support/mutate.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class ViewerService : public ::testing::Test {
 protected:
  ViewerService() : model_(load_model(test::golden("gpt2"))) {}

  // Every letter of the text is a token.
  AttentionPicture picture(const Viewer::Query& query) {
    LookInput input{.text = query.text};
    for (const char c : query.text) input.ids.push_back(static_cast<unsigned char>(c) % 90);
    return look(*model_, input, {.new_tokens = query.new_tokens});
  }
  Viewer viewer(ViewerOptions options = {}) {
    options.model = model_->info();
    return Viewer([this](const Viewer::Query& query) { return picture(query); }, options);
  }
  static ViewerRequest get(const std::string& path,
                           std::vector<std::pair<std::string, std::string>> query = {}) {
    return {.method = "GET", .path = path, .query = std::move(query), .host = "localhost:8080"};
  }
  static ViewerRequest post(const std::string& body) {
    return {.method = "POST", .path = "/api/look", .body = body, .host = "127.0.0.1:8080"};
  }

  std::unique_ptr<Model> model_;
};

TEST_F(ViewerService, LooksAndGivesRowsOfWhatItLookedAt) {
  Viewer viewer = this->viewer();
  const ViewerResponse response = viewer(post(R"({"text": "attention", "new_tokens": 2})"));
  ASSERT_EQ(response.status, 200) << response.body;
  const json page = json::parse(response.body);
  EXPECT_EQ(page["tokens"]["target"]["ids"].size(), 11u);
  const std::string id = std::to_string(page["id"].get<int>());
  const ViewerResponse row = viewer(get(
      "/api/rows", {{"id", id}, {"map", "decoder"}, {"layer", "1"}, {"head", "2"}, {"row", "4"}}));
  ASSERT_EQ(row.status, 200) << row.body;
  const SeenLayer layer = picture({"attention", "", 2}).maps[0].layers[1];
  const auto weights = layer.weights({.heads = {2}, .rows = {4}}).to_vector<float>();
  EXPECT_EQ(json::parse(row.body)["weights"].get<std::vector<float>>(), weights);
}

TEST_F(ViewerService, RefusesWithAReason) {
  Viewer viewer = this->viewer({.max_body = 200});
  const auto expect = [&](const ViewerRequest& request, int status, const std::string& why) {
    const ViewerResponse response = viewer(request);
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_THAT(json::parse(response.body)["error"].get<std::string>(), HasSubstr(why));
  };
  expect(post("no json"), 400, "JSON object");
  expect(post("[]"), 400, "JSON object");
  expect(post(R"({"text": ""})"), 400, "'text' is empty");
  expect(post(R"({"text": 3})"), 400, "'text' must be a string");
  expect(post(R"({"text": "a", "new_tokens": 100000})"), 400, "0 to 256");
  expect(post(R"({"text": "a", "new_tokens": 1.5})"), 400, "whole number");
  expect(post(R"({"text": "a", "file": "/etc/passwd"})"), 400, "none of text");
  expect(post("{\"text\": \"" + std::string(300, 'a') + "\"}"), 413, "too long");
  expect(post("{\"text\": \"" + std::string(100, 'a') + "\"}"), 400, "positions");
  expect(get("/api/look"), 405, "POST");
  expect(get("/api/rows", {{"id", "77"}, {"map", "decoder"}}), 404, "no longer kept");
  expect(get("/api/rows", {{"id", "x"}}), 400, "whole number");
  expect(get("/api/rows"), 400, "needs 'id'");
  expect(get("/../../etc/passwd"), 404, "no such page");
  expect(get("/style.css"), 404, "no such page");
  expect(get("/api/runs"), 404, "--runs");
}

TEST_F(ViewerService, EveryParameterIsReadWithCare) {
  Viewer viewer = this->viewer();
  ASSERT_EQ(viewer(post(R"({"text": "attention"})")).status, 200);
  const auto rows = [&](const std::string& name, const std::string& value) {
    ViewerRequest request =
        get("/api/rows",
            {{"id", "1"}, {"map", "decoder"}, {"layer", "0"}, {"head", "0"}, {"row", "0"}});
    for (auto& [key, old] : request.query) {
      if (key == name) old = value;
    }
    return viewer(request);
  };
  EXPECT_EQ(rows("map", "decoder").status, 200);
  EXPECT_THAT(rows("map", "").body, HasSubstr("'map' is empty"));
  EXPECT_THAT(rows("map", "cross").body, HasSubstr("there is decoder"));
  const std::string nul("0\0", 2);
  for (const char* name : {"id", "map", "layer", "head", "row"}) {
    for (const std::string& value : {std::string(), std::string("-1"), std::string("x"), nul,
                                     std::string("\xff"), std::string("99999999999999999999"),
                                     std::string("1.0"), std::string(" 1"), std::string("+1")}) {
      const ViewerResponse response = rows(name, value);
      EXPECT_EQ(response.status, 400) << name << "=" << value << response.body;
    }
  }
  for (const char* name : {"layer", "head", "row"}) {
    EXPECT_EQ(rows(name, "9223372036854775807").status, 400) << name;
    EXPECT_EQ(rows(name, "77").status, 400) << name;
  }
  EXPECT_EQ(rows("id", "9223372036854775807").status, 404);
  EXPECT_EQ(viewer(get("/api/rows", {{"id", "1"}})).status, 400);
}

TEST_F(ViewerService, ParametersAreKnownAndGivenOnce) {
  Viewer viewer = this->viewer();
  const auto expect = [&](const ViewerRequest& request, const std::string& why) {
    const ViewerResponse response = viewer(request);
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_THAT(json::parse(response.body)["error"].get<std::string>(), HasSubstr(why));
  };
  expect(get("/api/rows", {{"id", "1"}, {"id", "1"}}), "'id' twice");
  expect(get("/", {{"token", "a"}, {"token", "a"}}), "'token' twice");
  expect(get("/api/run", {{"nam", "a"}}), "'nam'; this takes name");
  expect(get("/api/model", {{"\x1b[2J", ""}}), "'?[2J'; this takes none");
  expect(get("/api/model", {{"token", "\xff"}}), "'token' must be UTF-8");
  expect(get("/api/model", {{"token", std::string("a\0", 2)}}), "without NUL");
  EXPECT_EQ(viewer(get("/api/model", {{"token", "a"}})).status, 200);
}

TEST_F(ViewerService, OtherMethodsAreToldWhichThereAre) {
  Viewer viewer = this->viewer();
  const auto answer = [&](const char* method, const char* path) {
    return viewer({.method = method, .path = path, .host = "localhost"});
  };
  EXPECT_EQ(answer("HEAD", "/api/model").body, answer("GET", "/api/model").body);
  for (const char* method : {"OPTIONS", "PUT", "POST", "DELETE", "TRACE", "PATCH", "get", ""}) {
    const ViewerResponse response = answer(method, "/api/model");
    EXPECT_EQ(response.status, 405) << method;
    EXPECT_THAT(response.headers, ::testing::ElementsAre(::testing::Pair("Allow", "GET, HEAD")));
  }
  EXPECT_THAT(answer("GET", "/api/look").headers,
              ::testing::ElementsAre(::testing::Pair("Allow", "POST")));
  EXPECT_EQ(answer("PUT", "/none").status, 404);
}

TEST_F(ViewerService, BodiesAreReadWithCare) {
  Viewer viewer = this->viewer();
  const auto expect = [&](const std::string& body, const std::string& why) {
    const ViewerResponse response = viewer(post(body));
    EXPECT_EQ(response.status, 400) << body.substr(0, 100);
    EXPECT_THAT(json::parse(response.body)["error"].get<std::string>(), HasSubstr(why));
    EXPECT_LT(response.body.size(), 400u);
  };
  expect("", "JSON");
  for (const char* body : {"null", "3", "\"text\"", "true", "[{\"text\": \"a\"}]"}) {
    expect(body, "must be a JSON object");
  }
  expect("{}", "needs 'text'");
  expect(std::string(100'000, '['), "levels of nesting");
  std::string deep;
  for (int i = 0; i < 40'000; ++i) deep += "{\"a\":";
  expect(deep, "levels of nesting");
  expect("{\"text\": " + std::string(60'000, '[') + std::string(60'000, ']') + "}", "levels");
  expect(R"({"text": "a", "text": "b"})", "'text' appears twice");
  expect(R"({"text": "a", "new_tokens": 1e400})", "out of range");
  for (const char* value :
       {"-1", "257", "99999999999999999999999", "1e300", "0.5", "\"1\"", "null", "[]", "true"}) {
    expect(std::string(R"({"text": "a", "new_tokens": )") + value + "}", "from 0 to 256");
  }
  for (const char* value : {"null", "[]", "{}", "1", "true", "[\"a\"]"}) {
    expect(std::string(R"({"text": )") + value + "}", "'text' must be a string");
    expect(std::string(R"({"text": "a", "target": )") + value + "}", "'target' must be a string");
  }
  expect(R"({"text": "\ud800"})", "not valid JSON");
  expect("{\"text\": \"\xff\"}", "not valid JSON");
  expect(R"({"text": "a"} {)", "not valid JSON");
  expect(R"({"text": "a", "file": null})", "'file', which is none of");
  EXPECT_EQ(viewer(post(R"({"text": "a", "new_tokens": 1.0})")).status, 200);
  EXPECT_EQ(viewer(post(R"({"text": "\u0000\ud83d\ude00"})")).status, 200);
}

TEST_F(ViewerService, AnswersAreUtf8WhateverTheCommandLineSays) {
  Viewer viewer = this->viewer({.title = "a\xff", .example = "\xc3"});
  for (const char* path : {"/", "/runs", "/api/model"}) {
    EXPECT_EQ(viewer(get(path)).status, 200) << path;
  }
  EXPECT_EQ(json::parse(viewer(get("/api/model")).body)["title"], "a\xEF\xBF\xBD");
  const ViewerResponse look = viewer(post(R"({"text": "a"})"));
  ASSERT_EQ(look.status, 200) << look.body;
  EXPECT_EQ(json::parse(look.body)["title"], "a\xEF\xBF\xBD");
}

// tests/fuzz looks further where there is time.
TEST_F(ViewerService, DamagedRequestsAreAnswered) {
  Viewer viewer = this->viewer({.max_body = 4096});
  testing::Mutator mutate(7);
  const std::string names[] = {"id", "map", "layer", "head", "row", "name", "token"};
  const std::string paths[] = {"/",         "/runs",     "/api/openapi.json", "/api/model",
                               "/api/look", "/api/rows", "/api/runs",         "/api/run"};
  ASSERT_EQ(viewer(post(R"({"text": "attention"})")).status, 200);
  for (int i = 0; i < 3000; ++i) {
    ViewerRequest request = get(paths[mutate.below(8)]);
    if (mutate.below(20) == 0) request.path = mutate(request.path);
    if (mutate.below(20) == 0) request.method = mutate(request.method);
    for (const std::string& name : names) {
      std::string value = name == "map" ? "decoder" : std::to_string(mutate.below(3));
      if (mutate.below(4) == 0) value = mutate(value);
      if (mutate.below(4) > 0) request.query.emplace_back(name, value);
    }
    if (request.path == "/api/rows" && mutate.below(2) == 0) request.query.resize(5);
    if (request.path == "/api/look") {
      request.method = "POST";
      request.body = mutate(R"({"text": "a", "target": "b", "new_tokens": 0})");
      request.query.clear();
    }
    const ViewerResponse response = viewer(request);
    EXPECT_THAT((std::vector{200, 400, 404, 405}), ::testing::Contains(response.status))
        << request.path << ": " << response.body;
    const bool is_json = response.type == "application/json";
    EXPECT_TRUE(!is_json || json::accept(response.body)) << response.body;
  }
}

TEST_F(ViewerService, AnswersOnlyItsOwnNameAndItsToken) {
  Viewer local = viewer();
  ViewerRequest request = get("/");
  for (const char* host : {"localhost", "localhost:1", "127.0.0.1:8080", "[::1]:8080", "[::1]"}) {
    request.host = host;
    EXPECT_EQ(local(request).status, 200) << host;
  }
  for (const char* host : {"", "evil.example", "evil.example:8080", "localhost.evil.example",
                           "127.0.0.1.evil.example:80"}) {
    request.host = host;
    EXPECT_EQ(local(request).status, 403) << host;
  }
  Viewer open = viewer({.token = "secret", .local = false});
  request.host = "evil.example";
  for (const char* token : {"", "s", "secre", "secret ", "secretsecret", "Secret"}) {
    request.token = token;
    EXPECT_EQ(open(request).status, 401) << token;
  }
  request.token = "secret";
  EXPECT_EQ(open(request).status, 200);
}

TEST_F(ViewerService, DescribesItself) {
  Viewer viewer = this->viewer({.title = "tiny"});
  const json api = json::parse(viewer(get("/api/openapi.json")).body);
  EXPECT_EQ(api["openapi"], "3.0.3");
  for (const auto& [path, methods] : api["paths"].items()) {
    ViewerRequest request = get(path);
    if (methods.contains("post")) request = post("{}");
    EXPECT_THAT((std::vector{200, 400, 404}), ::testing::Contains(viewer(request).status)) << path;
    EXPECT_THAT(viewer(request).body, ::testing::Not(HasSubstr("no such page"))) << path;
  }
  EXPECT_EQ(json::parse(viewer(get("/api/model")).body)["model"]["family"], "gpt2");
  EXPECT_THAT(viewer(get("/")).body, HasSubstr("<title>tiny"));
}

TEST_F(ViewerService, TurnsAwayWhoWouldWaitTooLong) {
  std::atomic<bool> inside = false, leave = false;
  Viewer viewer(
      [&](const Viewer::Query& query) {
        inside = true;
        while (!leave) std::this_thread::yield();
        return picture(query);
      },
      {.max_waiting = 1});
  std::thread first([&] { EXPECT_EQ(viewer(post(R"({"text": "a"})")).status, 200); });
  while (!inside) std::this_thread::yield();
  const ViewerResponse full = viewer(post(R"({"text": "b"})"));
  EXPECT_EQ(full.status, 503);
  EXPECT_THAT(full.headers, ::testing::ElementsAre(::testing::Pair("Retry-After", "1")));
  leave = true;
  first.join();
  EXPECT_EQ(viewer(post(R"({"text": "c"})")).status, 200);
}

TEST_F(ViewerService, ReadsRunsAsTheyGrow) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path run = std::filesystem::path(folder.path()) / "first";
  std::filesystem::create_directories(run);
  std::filesystem::create_directories(std::filesystem::path(folder.path()) / "no-run");
  std::ofstream file(run / "metrics.jsonl");
  file
      << R"({"step": 1, "loss": 5.5, "lr": 0.001, "tokens_per_second": 100, "seconds": 1})"
         "\n"
      << R"({"step": 2, "loss": 5.0, "eval": {"loss": 4.5, "bleu": 12}, "warning": "head 1 grows",)"
      << R"( "health": [{"name": "encoder.0.self", "head": 1, "max_logit": 3, "entropy": 0.5}]})"
         "\n"
      << "what is this\n"
      << R"({"step": 3, "lo)" << std::flush;  // being written
  Viewer viewer = this->viewer({.runs = folder.path()});
  const json list = json::parse(viewer(get("/api/runs")).body);
  ASSERT_EQ(list["runs"].size(), 1u);
  EXPECT_EQ(list["runs"][0]["step"], 2);
  json one = json::parse(viewer(get("/api/run", {{"name", "first"}})).body);
  EXPECT_EQ(one["points"]["loss"], (std::vector<double>{5.5, 5.0}));
  EXPECT_EQ(one["evaluations"][0]["bleu"], 12);
  EXPECT_EQ(one["warnings"][0]["text"], "head 1 grows");
  EXPECT_EQ(one["health"][0]["max_logit"][0], (json{nullptr, 3}));
  EXPECT_EQ(one["unreadable"], 1);

  file << R"(ss": 4.0})"
          "\n"
       << R"({"step": 4, "loss": 3.0})"
          "\n"
       << std::flush;
  one = json::parse(viewer(get("/api/run", {{"name", "first"}})).body);
  EXPECT_EQ(one["points"]["loss"], (std::vector<double>{5.5, 5.0, 4.0, 3.0}));
  file << R"({"step": 2, "loss": 4.9})"
          "\n"
       << std::flush;  // killed, and resumed after step 1
  one = json::parse(viewer(get("/api/run", {{"name", "first"}})).body);
  EXPECT_EQ(one["points"]["loss"], (std::vector<double>{5.5, 4.9}));
  EXPECT_TRUE(one["warnings"].empty());
  file << R"({"step": 3, "loss": 4.0})"
          "\n"
       << R"({"step": 3, "eval": {"loss": 3.5}})"
          "\n"
       << R"({"step": 4, "loss": "nan"})"
          "\n"
       << std::flush;  // an evaluation on a line of its own takes nothing back
  one = json::parse(viewer(get("/api/run", {{"name", "first"}})).body);
  EXPECT_EQ(one["points"]["loss"], (json{5.5, 4.9, 4.0, nullptr}));
  EXPECT_EQ(one["evaluations"].size(), 1u);

  const std::string cut = "{\"step\": 1, \"loss\": 5.5}\n" + std::string(4000, ' ') + "\n";
  std::ofstream(run / "new") << cut;  // longer than it was, and another file
  std::filesystem::rename(run / "new", run / "metrics.jsonl");
  one = json::parse(viewer(get("/api/run", {{"name", "first"}})).body);
  EXPECT_EQ(one["points"]["loss"], (std::vector<double>{5.5}));
  for (const char* name : {"../first", "first/../first", "", ".", "..", "/etc", "first/", "\xff"}) {
    EXPECT_EQ(viewer(get("/api/run", {{"name", name}})).status, 400) << name;
  }
  EXPECT_EQ(viewer(get("/api/run", {{"name", std::string("first\0", 6)}})).status, 400);
  for (const std::string& name :
       {std::string("no-run"), std::string("none"), std::string(3000, 'a')}) {
    EXPECT_EQ(viewer(get("/api/run", {{"name", name}})).status, 404) << name;
  }
}

TEST_F(ViewerService, ALongRunIsToldInBoundedAnswers) {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(std::filesystem::path(folder.path()) / "long");
  {
    std::ofstream file(std::filesystem::path(folder.path()) / "long" / "metrics.jsonl");
    for (int step = 0; step < 20000; ++step) {
      file << "{\"step\": " << step << ", \"loss\": " << step % 2
           << R"(, "health": [{"name": "a", "head": 0, "entropy": 1}]})"
              "\n";
    }
  }
  Viewer viewer = this->viewer({.runs = folder.path()});
  const json run = json::parse(viewer(get("/api/run", {{"name", "long"}})).body);
  EXPECT_EQ(run["points"]["loss"].size(), 1000u);
  EXPECT_EQ(run["points"]["loss"][7], 0.5);
  EXPECT_EQ(run["points"]["step"].back(), 19999);
  EXPECT_LE(run["health"].size(), 64u);
  EXPECT_GE(run["health"].size(), 32u);
}

}  // namespace
}  // namespace qkv

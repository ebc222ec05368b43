// Any bytes as a request to the viewer, or as a metrics.jsonl. A request is lines (method, path
// with its query, host, token) and a body behind them: every answer is one that the description of
// the API knows, and JSON where it says so. Behind "RUN\n" come lines of metrics: read in two
// pieces they say what they say read at once.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "qkv/viewer.h"
#include "viewer/run_file.h"
#include "viewer/run_log.h"
#include "viewer_backend.h"

namespace qkv {

Backend& backend(Device) {
  static ViewerBackend device;
  return device;
}

MemoryUse memory_use(Device device) { return backend(device).memory_use(); }

std::string to_string(ModelKind) { return "decoder"; }  // of the models, which are not here

namespace {

constexpr std::string_view kRun = "RUN\n";

SeenLayer layer_of(std::int64_t heads, std::int64_t rows, std::int64_t keys) {
  SeenLayer layer;
  layer.queries = Tensor::full({1, heads, rows, 2}, 0.5, {});
  layer.keys = Tensor::full({1, 1, keys, 2}, 0.5, {});
  layer.lse = Tensor::full({1, heads, rows}, 1, {});
  AttentionStatistics& s = layer.statistics;
  s.max_logit = s.score_var = s.entropy_mean = s.entropy_relative = s.saturation =
      Tensor::full({1, heads}, 0.5, {});
  return layer;
}

// A picture of a shape that the text chooses, also of those that no model makes.
AttentionPicture picture_of(const Viewer::Query& query) {
  check(query.text != "error", "look: this text cannot be read");
  const auto rows = static_cast<std::int64_t>(std::min<std::size_t>(query.target.size(), 5));
  const auto keys = static_cast<std::int64_t>(std::min<std::size_t>(query.text.size(), 5));
  AttentionPicture picture;
  picture.text = query.text;
  picture.written = query.target;
  picture.tokens = {{"source", std::vector<SeenToken>(std::size_t(keys), {1, "a"})},
                    {"written", std::vector<SeenToken>(std::size_t(rows), {2, "b"})}};
  if (query.new_tokens == 1) return picture;
  picture.maps = {{"encoder", "source", "source", {layer_of(2, keys, keys)}}};
  if (rows > 0) picture.maps.push_back({"cross", "written", "source", {}});
  if (query.new_tokens == 2) return picture;
  if (rows > 0) picture.maps[1].layers = {layer_of(1, rows, keys), layer_of(3, rows, keys)};
  return picture;
}

std::string_view take(std::string_view& rest, char end) {
  const std::size_t at = std::min(rest.find(end), rest.size());
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return part;
}

ViewerRequest request_of(std::string_view rest) {
  ViewerRequest request{.method = std::string(take(rest, '\n'))};
  std::string_view query = take(rest, '\n');
  request.path = take(query, '?');
  while (!query.empty()) {
    std::string_view pair = take(query, '&');
    const std::string_view name = take(pair, '=');
    request.query.emplace_back(name, pair);
  }
  request.host = take(rest, '\n');
  request.token = take(rest, '\n');
  request.body = rest;
  return request;
}

// A folder with one run, gone at the end.
struct Runs {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("viewer_fuzz-" + std::to_string(::getpid()));
  Runs() {
    std::filesystem::create_directories(path / "one");
    std::ofstream(path / "one" / "metrics.jsonl") << "{\"step\": 1, \"loss\": 2}\nno line\n";
  }
  ~Runs() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

void expect(bool holds) {
  if (!holds) std::abort();
}

void ask(Viewer& viewer, const ViewerRequest& request) {
  const ViewerResponse response = viewer(request);
  constexpr int kKnown[] = {200, 400, 401, 403, 404, 405, 413};
  expect(std::find(std::begin(kKnown), std::end(kKnown), response.status) != std::end(kKnown));
  if (response.type == "application/json") {
    const nlohmann::json json = nlohmann::json::parse(response.body, nullptr, false);
    expect(json.is_object() && (response.status == 200 || json["error"].is_string()));
  } else {
    expect(response.status == 200 && response.type.starts_with("text/html"));
  }
  expect((response.status == 405) == !response.headers.empty());
}

void fuzz_request(std::string_view bytes) {
  static const Runs runs;
  const ViewerRequest request = request_of(bytes);
  Viewer local(picture_of, {.runs = runs.path.string(), .max_body = 2048});
  const ViewerRequest look{.method = "POST",
                           .path = "/api/look",
                           .body = R"({"text": "abcd", "target": "abc"})",
                           .host = "localhost"};
  expect(local(look).status == 200);
  ask(local, request);
  Viewer open(picture_of, {.title = request.token, .token = "secret", .local = false});
  ask(open, request);
}

// A file of memory; its bytes come in two steps.
int file_of(std::string_view bytes) {
  static const int file = memfd_create("fuzz", 0);
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    std::abort();
  }
  return file;
}

void fuzz_run(std::string_view bytes) {
  viewer::RunLog at_once, in_pieces;
  in_pieces.update(file_of(bytes.substr(0, bytes.size() / 2)), "run", 1 << 20);
  in_pieces.update(file_of(bytes), "run", 7);
  in_pieces.update(file_of(bytes), "run", 1 << 20);
  at_once.update(file_of(bytes), "run", 1 << 20);
  const std::string said = viewer::dumped(at_once.to_json());
  expect(said == viewer::dumped(in_pieces.to_json()));
  expect(said.size() < (std::size_t{16} << 20) + bytes.size() * 200);
  const nlohmann::json json = nlohmann::json::parse(said);
  const auto last = viewer::last_point(file_of(bytes), bytes.size(), "run");
  expect(last.has_value() || json["points"]["step"].empty());
}

}  // namespace
}  // namespace qkv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with(qkv::kRun)) {
    qkv::fuzz_run(bytes.substr(qkv::kRun.size()));
  } else {
    qkv::fuzz_request(bytes);
  }
  return 0;
}

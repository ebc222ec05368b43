// What the viewer answers to requests. HTTP itself is somebody else's: here are only names, limits
// and JSON, so that all of it can be tested without a socket.
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>

#include "core/check.h"
#include "io/shown.h"
#include "qkv/error.h"
#include "qkv/version.h"
#include "viewer/assets.h"
#include "viewer/page.h"
#include "viewer/picture_values.h"
#include "viewer/request_parameters.h"
#include "viewer/runs.h"
#include "viewer/selection.h"

namespace qkv {
namespace {

using viewer::Json;
using viewer::Parameters;

constexpr std::size_t kKept = 4;  // pictures, for rows asked for later
constexpr const char* kJsonType = "application/json";
constexpr const char* kHtmlType = "text/html; charset=utf-8";

ViewerResponse answer(const Json& json, int status = 200) {
  return {status, kJsonType, viewer::dumped(json)};
}

ViewerResponse refusal(int status, const std::string& why) {
  return answer({{"error", why}}, status);
}

// In a time that does not tell how much of it was right.
bool same_token(std::string_view a, std::string_view b) {
  unsigned differs = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    differs |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]);
  }
  return differs == 0;
}

}  // namespace

struct Viewer::State {
  struct Kept {
    std::uint64_t id;
    std::shared_ptr<const AttentionPicture> picture;
  };

  State(Look l, ViewerOptions o) : look(std::move(l)), options(std::move(o)), runs(options.runs) {
    options.page.title = options.title;
  }

  Look look;
  ViewerOptions options;
  viewer::RunFolder runs;
  std::mutex model;  // one look at a time: it has all threads
  std::atomic<int> waiting = 0;
  std::mutex kept_mutex;
  std::deque<Kept> kept;
  std::uint64_t next_id = 1;

  Json about() const {
    const ModelInfo& m = options.model;
    return {{"qkv", kVersion},
            {"title", options.title},
            {"runs", !options.runs.empty()},
            {"model",
             {{"family", m.family},
              {"architecture", m.architecture},
              {"kind", to_string(m.kind)},
              {"hidden", m.hidden},
              {"layers", m.layers},
              {"heads", m.heads},
              {"max_positions", m.max_positions}}}};
  }

  ViewerResponse page(const Parameters&) {
    Json json = about();
    json["live"] = true;
    json["example"] = options.example;
    json["token"] = options.token;
    return {200, kHtmlType, viewer::look_page(options.title, viewer::dumped(json))};
  }

  ViewerResponse runs_page(const Parameters&) {
    return {200, kHtmlType, viewer::runs_page(viewer::dumped({{"token", options.token}}))};
  }

  ViewerResponse description(const Parameters&) {
    return {200, kJsonType, std::string(viewer::asset("openapi.json"))};
  }

  ViewerResponse model_of(const Parameters&) { return answer(about()); }

  ViewerResponse look_at(const Parameters& parameters) {
    Query query = viewer::look_query(parameters.request().body);
    query.cancelled = parameters.request().cancelled;
    struct Turn {
      std::atomic<int>& count;
      const int before = count++;
      explicit Turn(std::atomic<int>& c) : count(c) {}
      ~Turn() { --count; }
    } const turn(waiting);
    if (turn.before >= options.max_waiting) {
      ViewerResponse full = refusal(503, "too many are looking; try again");
      full.headers.emplace_back("Retry-After", "1");
      return full;
    }
    const auto begin = std::chrono::steady_clock::now();
    std::shared_ptr<const AttentionPicture> picture;
    std::string data;
    {
      const std::scoped_lock lock(model);
      check(!query.cancelled || !query.cancelled(), "the client left before its turn");
      picture = std::make_shared<const AttentionPicture>(look(query));
      data = to_page_data(*picture, options.page);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::uint64_t id = keep(std::move(picture));
    const std::string head = viewer::dumped({{"id", id}, {"seconds", took.count()}});
    data.replace(0, 1, head.substr(0, head.size() - 1) + ",");
    return {200, kJsonType, std::move(data)};
  }

  std::uint64_t keep(std::shared_ptr<const AttentionPicture> picture) {
    const std::scoped_lock lock(kept_mutex);
    kept.push_back({next_id++, std::move(picture)});
    if (kept.size() > kKept) kept.pop_front();
    return kept.back().id;
  }

  // nullptr: it was let go, or never was.
  std::shared_ptr<const AttentionPicture> kept_picture(std::uint64_t id) {
    const std::scoped_lock lock(kept_mutex);
    for (const Kept& one : kept) {
      if (one.id == id) return one.picture;
    }
    return nullptr;
  }

  ViewerResponse rows(const Parameters& parameters) {
    const auto picture = kept_picture(static_cast<std::uint64_t>(parameters.index("id")));
    if (!picture) return refusal(404, "this look is no longer kept; look again");
    const AttentionMap& map = viewer::first_map(*picture, parameters.text("map"));
    const PictureSelection selection{.map = map.name,
                                     .layer = parameters.index("layer"),
                                     .head = parameters.index("head"),
                                     .rows = {parameters.index("row")}};
    viewer::check_selection(map, selection);
    const SeenLayer& layer = map.layers[static_cast<std::size_t>(*selection.layer)];
    const Tensor weights = layer.weights({.heads = {*selection.head}, .rows = selection.rows});
    return answer({{"row", selection.rows[0]}, {"weights", weights.to_vector<float>()}});
  }

  ViewerResponse runs_of(const Parameters&) {
    return options.runs.empty() ? no_runs() : answer(runs.list());
  }

  ViewerResponse run_of(const Parameters& parameters) {
    if (options.runs.empty()) return no_runs();
    const std::string& name = parameters.text("name");
    const std::optional<Json> run = runs.read(name);
    return run ? answer(*run)
               : refusal(404, "there is no run '" + shown_name(name) + "' with a metrics.jsonl");
  }

  static ViewerResponse no_runs() {
    return refusal(404, "no folder of runs was given; serve with --runs");
  }

  struct Endpoint {
    std::string_view path;
    ViewerResponse (State::*handler)(const Parameters&);
    std::vector<std::string_view> parameters{};
    bool takes_post = false;  // else GET and HEAD
  };

  static const std::vector<Endpoint>& endpoints() {
    static const std::vector<Endpoint> all{
        {"/", &State::page},
        {"/runs", &State::runs_page},
        {"/api/openapi.json", &State::description},
        {"/api/model", &State::model_of},
        {"/api/look", &State::look_at, {}, true},
        {"/api/rows", &State::rows, {"id", "map", "layer", "head", "row"}},
        {"/api/runs", &State::runs_of},
        {"/api/run", &State::run_of, {"name"}},
    };
    return all;
  }

  ViewerResponse route(const ViewerRequest& request) {
    for (const Endpoint& endpoint : endpoints()) {
      if (endpoint.path != request.path) continue;
      const bool takes = endpoint.takes_post ? request.method == "POST"
                                             : request.method == "GET" || request.method == "HEAD";
      if (takes) return (this->*endpoint.handler)(Parameters(request, endpoint.parameters));
      ViewerResponse no =
          refusal(405, endpoint.takes_post ? "POST a JSON object to /api/look"
                                           : "only /api/look takes anything but GET and HEAD");
      no.headers.emplace_back("Allow", endpoint.takes_post ? "POST" : "GET, HEAD");
      return no;
    }
    return refusal(404, "there is no such page; / shows attention, /runs training runs");
  }
};

Viewer::Viewer(Look look, ViewerOptions options)
    : state_(std::make_unique<State>(std::move(look), std::move(options))) {}
Viewer::~Viewer() = default;

std::optional<ViewerResponse> Viewer::refuse(const ViewerRequest& head) const {
  const ViewerOptions& options = state_->options;
  // A page elsewhere may point a name of its own at this machine; its requests still say that name.
  if (options.local && !viewer::is_loopback_authority(head.host)) {
    return refusal(403, "ask for localhost or 127.0.0.1; other names are not answered");
  }
  if (!head.origin.empty() && !viewer::is_same_origin(head.origin, head.host)) {
    return refusal(403, "pages of other origins are not answered");
  }
  if (!options.token.empty() && !same_token(head.token, options.token)) {
    return refusal(401, "this needs the token that qkv serve printed: ?token=... or Bearer");
  }
  return {};
}

ViewerResponse Viewer::operator()(const ViewerRequest& request) {
  if (std::optional<ViewerResponse> why = refuse(request)) return *why;
  if (request.body.size() > state_->options.max_body) {
    return refusal(413, "the request is too long");
  }
  try {
    return state_->route(request);
  } catch (const OutOfMemory& error) {
    return refusal(503, error.what());  // not what was asked: it may work later
  } catch (const Error& error) {
    return refusal(400, error.what());
  } catch (const std::exception& error) {
    return refusal(500, error.what());
  }
}

}  // namespace qkv

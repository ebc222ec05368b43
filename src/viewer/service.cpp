// What the viewer answers to requests. HTTP itself is somebody else's: here are only names, limits
// and JSON, so that all of it can be tested without a socket.
#include <atomic>
#include <charconv>
#include <chrono>
#include <deque>
#include <mutex>
#include <string_view>

#include "core/check.h"
#include "qkv/version.h"
#include "viewer/assets.h"
#include "viewer/page.h"
#include "viewer/picture_values.h"
#include "viewer/runs.h"
#include "viewer/selection.h"

namespace qkv {
namespace {

using viewer::Json;

constexpr std::size_t kKept = 4;           // pictures, for rows asked for later
constexpr std::int64_t kMostTokens = 256;  // to be written for one look
constexpr const char* kJsonType = "application/json";
constexpr const char* kHtmlType = "text/html; charset=utf-8";

ViewerResponse refuse(int status, const std::string& why) {
  return {status, kJsonType,
          Json{{"error", why}}.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

// In a time that does not tell how much of it was right.
bool same_token(std::string_view a, std::string_view b) {
  unsigned differs = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    differs |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]);
  }
  return differs == 0;
}

// A page elsewhere may point a name of its own at this machine; its requests still say that name.
bool is_local(std::string_view host) {
  const std::size_t port = host.starts_with('[') ? host.find("]:") : host.rfind(':');
  if (port != std::string_view::npos)
    host = host.substr(0, host.starts_with('[') ? port + 1 : port);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

std::string query_of(const ViewerRequest& request, std::string_view name) {
  for (const auto& [key, value] : request.query) {
    if (key == name) return value;
  }
  fail("the query needs '{}'", name);
}

std::int64_t integer_of(const ViewerRequest& request, std::string_view name) {
  const std::string text = query_of(request, name);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(), "'{}' must be a whole number",
        name);
  return value;
}

Viewer::Query parsed(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  check(json.is_object(), "the body must be a JSON object");
  Viewer::Query query;
  for (const auto& [key, value] : json.items()) {
    if (key == "text" || key == "target") {
      check(value.is_string(), "'{}' must be a string", key);
      (key == "text" ? query.text : query.target) = value.get<std::string>();
    } else if (key == "new_tokens") {
      check(value.is_number_integer() && value >= 0 && value <= kMostTokens,
            "'new_tokens' must be a whole number from 0 to {}", kMostTokens);
      query.new_tokens = value.get<std::int64_t>();
    } else {
      fail("the body has '{}', which is none of text, target, new_tokens", key.substr(0, 40));
    }
  }
  check(!query.text.empty(), "'text' is empty");
  return query;
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

  ViewerResponse page() const {
    Json json = about();
    json["live"] = true;
    json["example"] = options.example;
    json["token"] = options.token;
    return {200, kHtmlType, viewer::look_page(options.title, json.dump())};
  }

  ViewerResponse look_at(const ViewerRequest& request) {
    const Query query = parsed(request.body);
    struct Turn {
      std::atomic<int>& count;
      const int before = count++;
      explicit Turn(std::atomic<int>& c) : count(c) {}
      ~Turn() { --count; }
    } const turn(waiting);
    if (turn.before >= options.max_waiting) return refuse(503, "too many are looking; try again");
    const auto begin = std::chrono::steady_clock::now();
    std::shared_ptr<const AttentionPicture> picture;
    std::string data;
    {
      const std::scoped_lock lock(model);
      picture = std::make_shared<const AttentionPicture>(look(query));
      data = to_page_data(*picture, options.page);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::uint64_t id = 0;
    {
      const std::scoped_lock lock(kept_mutex);
      id = next_id++;
      kept.push_back({id, picture});
      if (kept.size() > kKept) kept.pop_front();
    }
    const std::string head = Json{{"id", id}, {"seconds", took.count()}}.dump();
    data.replace(0, 1, head.substr(0, head.size() - 1) + ",");
    return {200, kJsonType, std::move(data)};
  }

  ViewerResponse rows(const ViewerRequest& request) {
    const auto id = static_cast<std::uint64_t>(integer_of(request, "id"));
    std::shared_ptr<const AttentionPicture> picture;
    {
      const std::scoped_lock lock(kept_mutex);
      for (const Kept& one : kept) {
        if (one.id == id) picture = one.picture;
      }
    }
    if (!picture) return refuse(404, "this look is no longer kept; look again");
    const PictureSelection selection{.map = query_of(request, "map"),
                                     .layer = integer_of(request, "layer"),
                                     .head = integer_of(request, "head"),
                                     .rows = {integer_of(request, "row")}};
    viewer::check_selection(*picture, selection);
    const SeenLayer& layer =
        picture->map(selection.map)->layers[static_cast<std::size_t>(*selection.layer)];
    const Tensor weights = layer.weights({.heads = {*selection.head}, .rows = selection.rows});
    const Json json{{"row", selection.rows[0]}, {"weights", weights.to_vector<float>()}};
    return {200, kJsonType, json.dump()};
  }

  ViewerResponse run_of(const ViewerRequest& request) {
    if (options.runs.empty()) return refuse(404, "no folder of runs was given; serve with --runs");
    const Json json =
        request.path == "/api/runs" ? runs.list() : runs.read(query_of(request, "name"));
    return {200, kJsonType, json.dump(-1, ' ', false, Json::error_handler_t::replace)};
  }

  ViewerResponse route(const ViewerRequest& request) {
    const std::string& path = request.path;
    if (path == "/api/look") {
      if (request.method != "POST") return refuse(405, "POST a JSON object to /api/look");
      return look_at(request);
    }
    if (request.method != "GET") return refuse(405, "only /api/look takes anything but GET");
    if (path == "/") return page();
    if (path == "/runs") {
      return {200, kHtmlType, viewer::runs_page(Json{{"token", options.token}}.dump())};
    }
    if (path == "/api/openapi.json") {
      return {200, kJsonType, std::string(viewer::asset("openapi.json"))};
    }
    if (path == "/api/model") return {200, kJsonType, about().dump()};
    if (path == "/api/rows") return rows(request);
    if (path == "/api/runs" || path == "/api/run") return run_of(request);
    return refuse(404, "there is no such page; / shows attention, /runs training runs");
  }
};

Viewer::Viewer(Look look, ViewerOptions options)
    : state_(std::make_unique<State>(std::move(look), std::move(options))) {}
Viewer::~Viewer() = default;

ViewerResponse Viewer::operator()(const ViewerRequest& request) {
  const ViewerOptions& options = state_->options;
  if (options.local && !is_local(request.host)) {
    return refuse(403, "ask for localhost or 127.0.0.1; other names are not answered");
  }
  if (!options.token.empty() && !same_token(request.token, options.token)) {
    return refuse(401, "this needs the token that qkv serve printed: ?token=... or Bearer");
  }
  if (request.body.size() > options.max_body) return refuse(413, "the request is too long");
  try {
    return state_->route(request);
  } catch (const OutOfMemory& error) {
    return refuse(503, error.what());  // not what was asked: it may work later
  } catch (const Error& error) {
    return refuse(400, error.what());
  } catch (const std::exception& error) {
    return refuse(500, error.what());
  }
}

}  // namespace qkv

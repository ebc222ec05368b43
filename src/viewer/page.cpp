// The pages: assets put together, with their data in a place no script can escape from.
#include "viewer/page.h"

#include "qkv/viewer.h"
#include "viewer/assets.h"
#include "viewer/spelling.h"

namespace qkv {
namespace viewer {
namespace {

constexpr const char* kScripts[] = {"data.js",     "dom.js",        "scales.js",    "export.js",
                                    "heat_map.js", "head_view.js",  "long_view.js", "model_view.js",
                                    "qk_view.js",  "heads_view.js", "live.js",      "main.js"};
constexpr const char* kRunScripts[] = {"dom.js",      "scales.js", "export.js",
                                       "heat_map.js", "curves.js", "runs.js"};

// JSON says "<" only in strings, where it may be written like this.
std::string without_tags(const std::string& json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

struct Parts {
  std::string title, data, script;

  std::string operator()(std::string_view place) const {
    if (place == "title") return escaped(title);
    if (place == "style") return std::string(asset("style.css"));
    return place == "data" ? without_tags(data) : script;
  }
};

// The template with its {{places}} filled; what fills one is not looked at again.
std::string page_of(std::string_view rest, const Parts& parts) {
  std::string page;
  for (std::size_t at = 0; (at = rest.find("{{")) != std::string_view::npos;) {
    const std::size_t end = rest.find("}}", at);
    page += rest.substr(0, at);
    page += parts(rest.substr(at + 2, end - at - 2));
    rest.remove_prefix(end + 2);
  }
  return page.append(rest);
}

template <std::size_t N>
std::string joined(const char* const (&scripts)[N]) {
  std::string script;
  for (const char* file : scripts) script += asset(file);
  return script;
}

}  // namespace

std::string look_page(const std::string& title, const std::string& json) {
  return page_of(asset("look.html"), {title, json, joined(kScripts)});
}

std::string runs_page(const std::string& json) {
  return page_of(asset("runs.html"), {"Training runs", json, joined(kRunScripts)});
}

}  // namespace viewer

namespace {
constexpr std::int64_t kMostTitle = 80;  // columns
}  // namespace

std::string to_html(const AttentionPicture& picture, const PageOptions& options) {
  const std::string title = viewer::printable(options.title.empty() ? picture.text : options.title);
  const bool fits = viewer::columns_of(title) <= kMostTitle;
  return viewer::look_page(fits ? title : viewer::fitted(title, kMostTitle),
                           to_page_data(picture, options));
}

}  // namespace qkv

// tokenizer.json, written: the settings again, and in their model the vocabulary and the merges.
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "text/tokenizer_file.h"

namespace qkv::text {
namespace {

using Json = nlohmann::ordered_json;

std::string quoted(const std::string& text) { return Json(text).dump(); }

std::string vocabulary_json(const TokenizerFile& file) {
  std::string text(1, file.vocabulary_is_list ? '[' : '{');
  for (const TokenizerFile::Entry& entry : file.vocabulary) {
    if (text.size() > 1) text += ',';
    text += file.vocabulary_is_list
                ? fmt::format("[{},{}]", quoted(entry.token), Json(entry.score).dump())
                : fmt::format("{}:{}", quoted(entry.token), entry.id);
  }
  return text + (file.vocabulary_is_list ? ']' : '}');
}

std::string merges_json(const TokenizerFile& file) {
  std::string text = "[";
  for (const auto& [left, right] : file.merges) {
    if (text.size() > 1) text += ',';
    text += fmt::format("[{},{}]", quoted(left), quoted(right));
  }
  return text + "]";
}

}  // namespace

std::string TokenizerFile::to_json() const {
  Json document = Json::parse(settings);
  // Lengths are the caller's to say, and were not applied when the file was read either.
  document["truncation"] = document["padding"] = nullptr;
  std::string model = document["model"].dump();
  model.pop_back();
  model += fmt::format("{}\"vocab\":{}", model == "{" ? "" : ",", vocabulary_json(*this));
  if (has_merges) model += fmt::format(",\"merges\":{}", merges_json(*this));
  document.erase("model");
  std::string text = document.dump();
  text.pop_back();
  return fmt::format("{},\"model\":{}}}}}\n", text, model);
}

}  // namespace qkv::text

#include "viewer/picture_values.h"

#include "qkv/version.h"
#include "text/utf8.h"

namespace qkv::viewer {
namespace {

Json tokens_of(const AttentionPicture& picture) {
  Json lists = Json::object();
  for (const auto& [name, tokens] : picture.tokens) {
    Json texts = Json::array(), ids = Json::array();
    for (const SeenToken& token : tokens) {
      texts.push_back(token.text);
      ids.push_back(token.id);
    }
    lists[name] = {{"texts", std::move(texts)}, {"ids", std::move(ids)}};
  }
  return lists;
}

Json answers_of(const AttentionPicture& picture) {
  Json answers = Json::array();
  for (const auto& [position, choices] : picture.answers) {
    Json list = Json::array();
    for (const TokenChoice& choice : choices) {
      list.push_back({{"id", choice.token.id},
                      {"text", choice.token.text},
                      {"probability", static_cast<float>(choice.probability)}});
    }
    Json answer{{"choices", std::move(list)}};
    if (position >= 0) answer["position"] = position;
    answers.push_back(std::move(answer));
  }
  return answers;
}

}  // namespace

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json description_of(const AttentionPicture& picture) {
  const ModelInfo& m = picture.model;
  Json model{{"family", m.family},        {"architecture", m.architecture},
             {"kind", to_string(m.kind)}, {"hidden", m.hidden},
             {"layers", m.layers},        {"heads", m.heads}};
  Json json{
      {"qkv", kVersion}, {"model", std::move(model)}, {"text", text::repaired_utf8(picture.text)}};
  if (!picture.written.empty()) json["written"] = text::repaired_utf8(picture.written);
  if (m.kind == ModelKind::decoder) json["prompt_tokens"] = picture.prompt_tokens;
  json["tokens"] = tokens_of(picture);
  json["answers"] = answers_of(picture);
  return json;
}

Json statistics_of(const SeenLayer& layer) {
  const AttentionStatistics& s = layer.statistics;
  return {{"max_logit", s.max_logit.to_vector<float>()},
          {"variance", s.score_var.to_vector<float>()},
          {"entropy", s.entropy_mean.to_vector<float>()},
          {"entropy_relative", s.entropy_relative.to_vector<float>()},
          {"saturation", s.saturation.to_vector<float>()}};
}

}  // namespace qkv::viewer

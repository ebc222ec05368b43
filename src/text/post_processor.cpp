#include "text/post_processor.h"

#include <algorithm>

#include "core/check.h"
#include "io/shown.h"

namespace qkv::text {
namespace {

using What = TemplateItem::What;
constexpr std::int64_t kLargestType = 1'000'000;
constexpr std::size_t kMostAdded = 1024;

std::vector<TokenId> ids_in(const Config& config, const std::string& key) {
  std::vector<TokenId> ids;
  for (const std::int64_t id : config.integers(key, 0, kLargestId)) {
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

Template read_template(const Config& config, const std::string& key) {
  Template result;
  std::size_t added = 0;
  for (const Config& entry : config.objects(key)) {
    const bool sequence = entry.has("Sequence");
    check(sequence || entry.has("SpecialToken"), "{} must hold Sequence or SpecialToken",
          config.where(key));
    const Config inside = entry.object(sequence ? "Sequence" : "SpecialToken");
    const std::string id = inside.text("id");
    TemplateItem item;
    item.type = inside.integer_or("type_id", 0, 0, kLargestType);
    if (sequence) {
      check(id == "A" || id == "B", "{}: '{}' is neither A nor B", inside.where("id"),
            shown_name(id));
      item.what = id == "A" ? What::first : What::second;
    } else {
      item.what = What::special;
      item.ids = ids_in(config.object("special_tokens").object(id), "ids");
      added += 1 + item.ids.size();
      check(added <= kMostAdded, "{}: a template that adds more than {} tokens is not supported",
            config.where(key), kMostAdded);
    }
    result.push_back(std::move(item));
  }
  return result;
}

void check_template(const Template& items, bool pair, const std::string& where) {
  const auto first = std::ranges::count(items, What::first, &TemplateItem::what);
  const auto second = std::ranges::count(items, What::second, &TemplateItem::what);
  // A text that comes twice would not be cut to max_tokens.
  check(first <= 1 && second <= 1, "{} must use a text only once", where);
  check(pair ? first == 1 && second == 1 : second == 0, "{} must use {}", where,
        pair ? "both A and B" : "A and not B");
}

// ["[CLS]", 101]
TokenId named_id(const Config& config, const std::string& key) {
  return static_cast<TokenId>(config.text_and_integer(key, 0, kLargestId).second);
}

Template surrounded(const TemplateItem& cls, const TemplateItem& sep, bool pair, bool roberta) {
  Template items{cls, {What::first, 0, {}}, sep};
  if (!pair) return items;
  if (roberta) items.push_back(sep);
  const std::int64_t type = roberta ? 0 : 1;
  items.push_back({What::second, type, {}});
  items.push_back({What::special, type, sep.ids});
  return items;
}

void add(PostProcessor& result, const Config& config, bool& has_template) {
  const std::string type = config.text("type");
  if (type == "Sequence") {
    for (const Config& step : config.objects("processors")) add(result, step, has_template);
    return;
  }
  const bool roberta = type == "RobertaProcessing";
  if (type == "ByteLevel" || roberta) {
    const PostProcessor::Trim trim{config.flag_or("add_prefix_space", true)};
    if (config.flag_or("trim_offsets", true)) result.trims.push_back(trim);
    if (!roberta) return;
  }
  check(!has_template, "{}: a second template is not supported", config.where("type"));
  has_template = true;
  if (type == "BertProcessing" || roberta) {
    const TemplateItem cls{What::special, 0, {named_id(config, "cls")}};
    const TemplateItem sep{What::special, 0, {named_id(config, "sep")}};
    result.single = surrounded(cls, sep, false, roberta);
    result.pair = surrounded(cls, sep, true, roberta);
    return;
  }
  check(type == "TemplateProcessing",
        "{}: '{}' is not supported; supported are TemplateProcessing, BertProcessing, "
        "RobertaProcessing, ByteLevel and Sequence",
        config.where("type"), shown_name(type));
  result.single = read_template(config, "single");
  result.pair = read_template(config, "pair");
  check_template(result.single, false, config.where("single"));
  if (!result.pair.empty()) check_template(result.pair, true, config.where("pair"));
}

}  // namespace

std::size_t PostProcessor::special_tokens(bool of_pair) const {
  std::size_t count = 0;
  for (const TemplateItem& item : of_pair ? pair : single) count += item.ids.size();
  return count;
}

PostProcessor make_post_processor(const std::optional<Config>& config) {
  PostProcessor result;
  result.single = {{What::first, 0, {}}};
  result.pair = {{What::first, 0, {}}, {What::second, 1, {}}};
  bool has_template = false;
  if (config) add(result, *config, has_template);
  return result;
}

}  // namespace qkv::text

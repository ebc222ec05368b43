#include "io/json.h"

#include <cmath>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/check.h"
#include "io/file.h"
#include "io/file_kind.h"
#include "io/shown.h"
#include "io/strict_json.h"

namespace qkv {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;
constexpr std::size_t kDeepest = 64;
// A value of two characters becomes some hundred bytes of memory: what a small file may cost.
constexpr std::size_t kMostValues = 1'000'000;

// What the parser lets pass and we do not, seen event by event before it becomes memory. By itself,
// not as the parser's callback: with one, the end of each object of a list looks through the list.
class Watch final : public nlohmann::json_sax<Json> {
 public:
  explicit Watch(const std::string& name) : name_(name) {}

  bool null() override { return event(); }
  bool boolean(bool /*value*/) override { return event(); }
  bool number_integer(number_integer_t /*value*/) override { return event(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return event(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return event(); }
  bool string(string_t& /*value*/) override { return event(); }
  bool binary(binary_t& /*value*/) override { return event(); }
  bool key(string_t& key) override {
    check(keys_.back().insert(key).second, "{}: the key '{}' appears twice", name_,
          shown_name(key));
    return event();
  }
  bool start_object(std::size_t /*elements*/) override { return start(); }
  bool start_array(std::size_t /*elements*/) override { return start(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  // The parser says what is wrong.
  bool parse_error(std::size_t /*byte*/, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    return false;
  }

 private:
  bool event() {
    check(keys_.size() <= kDeepest, "{}: more than {} levels of nesting", name_, kDeepest);
    check(++events_ <= kMostValues, "{}: more than {} values", name_, kMostValues);
    return true;
  }
  bool start() {
    event();
    keys_.emplace_back();
    return true;
  }
  bool end() {
    keys_.pop_back();
    return event();
  }

  const std::string& name_;
  std::vector<std::set<std::string>> keys_;  // so far, of every object and list we are in
  std::size_t events_ = 0;
};

Json watched_json(std::string_view text, const std::string& name) {
  Watch watch(name);
  Json::sax_parse(text.begin(), text.end(), &watch);
  return Json::parse(text.begin(), text.end());
}

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  return shown_name(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool fits(const Json& value, std::int64_t min, std::int64_t max) {
  // Positive numbers are unsigned here and may not fit in int64_t.
  if (value.is_number_unsigned()) {
    return std::in_range<std::int64_t>(value.get<std::uint64_t>()) &&
           value.get<std::int64_t>() >= min && value.get<std::int64_t>() <= max;
  }
  return value.is_number_integer() && value.get<std::int64_t>() >= min &&
         value.get<std::int64_t>() <= max;
}

std::int64_t as_integer(const Json& value, const std::string& where, std::int64_t min,
                        std::int64_t max) {
  check(fits(value, min, max), "{} must be an integer from {} to {}, got {}", where, min, max,
        shown(value));
  return value.get<std::int64_t>();
}

double as_number(const Json& value, const std::string& where, double min, double max) {
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  check(number >= min && number <= max, "{} must be a number from {} to {}, got {}", where, min,
        max, shown(value));
  return number;
}

bool as_flag(const Json& value, const std::string& where) {
  check(value.is_boolean(), "{} must be true or false, got {}", where, shown(value));
  return value.get<bool>();
}

std::string as_text(const Json& value, const std::string& where) {
  check(value.is_string(), "{} must be a text, got {}", where, shown(value));
  return value.get<std::string>();
}

// Calls f(element, its name in messages) for each element of a list, or for a value by itself.
template <class F>
auto each(const Json* value, const std::string& where, F&& f) {
  std::vector<decltype(f(*value, where))> results;
  if (value == nullptr) return results;
  if (!value->is_array()) {
    results.push_back(f(*value, where));
    return results;
  }
  results.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    results.push_back(f((*value)[i], fmt::format("{}[{}]", where, i)));
  }
  return results;
}

}  // namespace

struct Config::Value {
  std::shared_ptr<const Json> json;  // keeps the whole document
  std::string name;                  // of the file
  std::string prefix;                // "rope_scaling." inside of that object

  const Json* find(const std::string& key) const {
    const auto found = json->find(key);
    return found == json->end() || found->is_null() ? nullptr : &*found;
  }
  std::string where(const std::string& key) const {
    return fmt::format("{}: {}{}", name, prefix, shown_name(key));
  }
  const Json& at(const std::string& key) const {
    const Json* value = find(key);
    check(value != nullptr, "{} is missing", where(key));
    return *value;
  }
  Config inner(const Json& value, const std::string& place) const {
    check(value.is_object(), "{} must be an object, got {}", place, shown(value));
    return Config(std::make_shared<Value>(Value{std::shared_ptr<const Json>(json, &value), name,
                                                place.substr(name.size() + 2) + "."}));
  }
};

Config::Config()
    : Config(std::make_shared<Value>(Value{std::make_shared<Json>(Json::object()), "config", ""})) {
}

Config Config::read(const std::string& path) { return parse(read_file(path, kLargestFile), path); }

nlohmann::json strict_json(std::string_view text, const std::string& name) try {
  check(text.size() <= kLargestFile, "{}: {} bytes, at most {} are expected", name, text.size(),
        kLargestFile);
  return watched_json(text, name);
} catch (const Json::parse_error& error) {
  // The parser's own message quotes the text it stumbled over, which may be all of the file.
  const std::string kind = file_kind(text);
  const bool is_other = !kind.empty() && kind != "a JSON file";
  fail("{}: not valid JSON at byte {}{}", name, error.byte, is_other ? ": this is " + kind : "");
} catch (const Json::exception&) {
  fail("{}: a number is out of range", name);
} catch (const std::bad_alloc&) {
  fail<OutOfMemory>("{}: out of memory", name);
}

Config Config::parse(std::string_view text, const std::string& name) {
  auto json = std::make_shared<Json>(strict_json(text, name));
  check(json->is_object(), "{}: expected a JSON object, got {}", name, shown(*json));
  return Config(std::make_shared<Value>(Value{std::move(json), name, ""}));
}

bool Config::has(const std::string& key) const { return value_->find(key) != nullptr; }
bool Config::mentions(const std::string& key) const { return value_->json->contains(key); }

bool Config::is_text(const std::string& key) const {
  const Json* value = value_->find(key);
  return value != nullptr && value->is_string();
}

std::vector<std::string> Config::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : value_->json->items()) {
    if (!value.is_null()) keys.push_back(key);
  }
  return keys;
}

std::string Config::where(const std::string& key) const { return value_->where(key); }
const std::string& Config::name() const { return value_->name; }

std::int64_t Config::integer(const std::string& key, std::int64_t min, std::int64_t max) const {
  return as_integer(value_->at(key), where(key), min, max);
}
std::int64_t Config::integer_or(const std::string& key, std::int64_t fallback, std::int64_t min,
                                std::int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double Config::number(const std::string& key, double min, double max) const {
  return as_number(value_->at(key), where(key), min, max);
}
double Config::number_or(const std::string& key, double fallback, double min, double max) const {
  return has(key) ? number(key, min, max) : fallback;
}

bool Config::flag(const std::string& key) const { return as_flag(value_->at(key), where(key)); }
bool Config::flag_or(const std::string& key, bool fallback) const {
  return has(key) ? flag(key) : fallback;
}

std::string Config::text(const std::string& key) const {
  return as_text(value_->at(key), where(key));
}
std::string Config::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

Config Config::object(const std::string& key) const {
  return value_->inner(value_->at(key), where(key));
}

std::vector<std::int64_t> Config::integers(const std::string& key, std::int64_t min,
                                           std::int64_t max) const {
  return each(value_->find(key), where(key), [&](const Json& value, const std::string& place) {
    return as_integer(value, place, min, max);
  });
}

std::vector<double> Config::numbers(const std::string& key, double min, double max) const {
  return each(value_->find(key), where(key), [&](const Json& value, const std::string& place) {
    return as_number(value, place, min, max);
  });
}

std::vector<std::vector<std::int64_t>> Config::integer_lists(const std::string& key,
                                                             std::int64_t min,
                                                             std::int64_t max) const {
  const auto list = [&](const Json& value, const std::string& place) {
    check(value.is_array(), "{} must be a list of integers, got {}", place, shown(value));
    return each(&value, place, [&](const Json& one, const std::string& where) {
      return as_integer(one, where, min, max);
    });
  };
  return each(value_->find(key), where(key), list);
}

std::vector<std::string> Config::texts(const std::string& key) const {
  return each(value_->find(key), where(key), as_text);
}

std::vector<Config> Config::objects(const std::string& key) const {
  return each(value_->find(key), where(key), [&](const Json& value, const std::string& place) {
    return value_->inner(value, place);
  });
}

std::pair<std::string, std::int64_t> Config::text_and_integer(const std::string& key,
                                                              std::int64_t min,
                                                              std::int64_t max) const {
  const Json& value = value_->at(key);
  check(value.is_array() && value.size() == 2, "{} must be a list of a text and an integer, got {}",
        where(key), shown(value));
  return {as_text(value[0], where(key) + "[0]"),
          as_integer(value[1], where(key) + "[1]", min, max)};
}

std::map<std::string, std::string> Config::all_texts() const {
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : value_->json->items()) {
    texts.emplace_hint(texts.end(), key, as_text(value, where(key)));
  }
  return texts;
}

std::string with_key(std::string_view text, const std::string& name, const std::string& key,
                     const std::string& value) {
  Config::parse(text, name);  // says what is wrong with it
  auto object = nlohmann::ordered_json::parse(text);
  if (value.empty()) {
    object.erase(key);
  } else {
    object[key] = nlohmann::ordered_json::parse(value);
  }
  return object.dump(2) + "\n";
}

}  // namespace qkv

#include "text/tokenizer_file.h"

#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "io/file.h"
#include "io/shown.h"

namespace qkv::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kDeepestValues = 64;
// Of the settings, written out; Config has bounds of its own.
constexpr std::size_t kLargestSettings = std::size_t{15} << 20;
constexpr std::size_t kMostKeys = 4096;  // to_json looks through all of an object for each of them

// Hears the file event by event. Vocabulary and merges go into their lists, everything else is
// written down again as JSON for Config.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(TokenizerFile& file) : file_(file) {}

  bool null() override { return value("null"); }
  bool boolean(bool flag) override { return value(flag ? "true" : "false"); }
  bool number_integer(number_integer_t number) override {
    if (place_ != Place::settings) number_here(static_cast<double>(number));
    return value(fmt::format("{}", number));
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (place_ == Place::vocabulary && !list_) {
      check(number <= kLargestId, "{}: the token '{}' has the id {}, at most {} is expected",
            file_.name, shown_name(key_), number, kLargestId);
      check(depth_ == vocabulary_depth_, "{}: model.vocab must map tokens to ids", file_.name);
      file_.vocabulary.push_back({std::move(key_), static_cast<TokenId>(number), 0});
      return true;
    }
    if (place_ != Place::settings) number_here(static_cast<double>(number));
    return value(fmt::format("{}", number));
  }
  bool number_float(number_float_t number, const string_t& text) override {
    if (place_ != Place::settings) number_here(number);
    return value(text);
  }
  bool string(string_t& text) override {
    if (place_ == Place::settings) return value(quoted(text));
    string_here(text);
    return true;
  }
  bool binary(binary_t& /*bytes*/) override { return false; }

  bool key(string_t& text) override {
    if (place_ == Place::vocabulary) {
      key_ = std::move(text);
      return true;
    }
    check(place_ == Place::settings, "{}: model.merges must be a list", file_.name);
    key_ = text;
    check(++keys_.back() <= kMostKeys, "{}: more than {} keys in an object beside the vocabulary",
          file_.name, kMostKeys);
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    if (enter(false)) return true;
    refuse_for_list();
    return open('{', '}');
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*elements*/) override {
    if (enter(true)) return true;
    return open('[', ']');
  }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    fail("{}: not valid JSON at byte {}", file_.name, byte);
  }

 private:
  enum class Place : std::uint8_t { settings, vocabulary, merges };

  static std::string quoted(const std::string& text) { return Json(text).dump(); }

  bool in_model() const { return path_.size() == 2 && path_[1] == "model"; }

  // True when a list or object is model.vocab or model.merges, or lies within.
  bool enter(bool list) {
    check(++depth_ <= kDeepestValues, "{}: more than {} levels of nesting", file_.name,
          kDeepestValues);
    if (place_ != Place::settings) {
      check(list && depth_ == vocabulary_depth_ + 1 && list_,
            "{}: model.{} holds something unexpected", file_.name,
            place_ == Place::vocabulary ? "vocab" : "merges");
      strings_.clear();
      has_number_ = false;
      return true;
    }
    if (!in_model() || (key_ != "vocab" && key_ != "merges")) return false;
    check(list || key_ == "vocab", "{}: model.merges must be a list", file_.name);
    place_ = key_ == "vocab" ? Place::vocabulary : Place::merges;
    auto& done = place_ == Place::vocabulary ? vocabulary_done_ : merges_done_;
    check(!done, "{}: model.{} appears twice", file_.name, key_);
    done = true;
    list_ = list;
    vocabulary_depth_ = depth_;
    if (place_ == Place::vocabulary) file_.vocabulary_is_list = list;
    if (place_ == Place::merges) file_.has_merges = true;
    return true;
  }

  bool open(char begin, char end) {
    separate();
    file_.settings += begin;
    path_.push_back(std::exchange(key_, {}));  // a copy for each element would be quadratic
    ends_.push_back(end);
    keys_.push_back(0);
    fresh_ = true;
    return true;
  }

  bool close() {
    if (place_ != Place::settings) {
      if (depth_-- == vocabulary_depth_) {
        place_ = Place::settings;
      } else {
        finish_entry();
      }
      return true;
    }
    --depth_;
    file_.settings += ends_.back();
    ends_.pop_back();
    keys_.pop_back();
    key_ = std::move(path_.back());
    path_.pop_back();
    fresh_ = false;
    return true;
  }

  // A comma and the key, as the value needs them.
  void separate() {
    if (!fresh_) file_.settings += ',';
    fresh_ = false;
    if (!ends_.empty() && ends_.back() == '}') file_.settings += quoted(key_) + ':';
    check(file_.settings.size() <= kLargestSettings, "{}: more than {} bytes beside the vocabulary",
          file_.name, kLargestSettings);
  }

  bool value(std::string_view text) {
    if (place_ != Place::settings) return true;
    if (text != "null") refuse_for_list();
    separate();
    file_.settings += text;
    return true;
  }

  // Config would take one object for a list of one.
  void refuse_for_list() const {
    check(path_.size() != 1 || key_ != "added_tokens", "{}: added_tokens must be a list",
          file_.name);
  }

  void number_here(double number) {
    check(place_ == Place::vocabulary && list_ && depth_ == vocabulary_depth_ + 1 && !has_number_,
          "{}: model.{} holds a number where none is expected", file_.name,
          place_ == Place::vocabulary ? "vocab" : "merges");
    number_ = number;
    has_number_ = true;
  }

  void string_here(std::string& text) {
    if (place_ == Place::merges && depth_ == vocabulary_depth_) {  // "a b"
      const std::size_t space = text.find(' ');
      if (text.starts_with("#version")) return;
      check(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
            "{}: merge {} is not two tokens with a space between", file_.name, file_.merges.size());
      file_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
      return;
    }
    check(list_ && depth_ == vocabulary_depth_ + 1 && strings_.size() < 2,
          "{}: model.{} holds a text where none is expected", file_.name,
          place_ == Place::vocabulary ? "vocab" : "merges");
    strings_.push_back(std::move(text));
  }

  void finish_entry() {
    if (place_ == Place::merges) {
      check(strings_.size() == 2, "{}: merge {} is not a pair of tokens", file_.name,
            file_.merges.size());
      file_.merges.emplace_back(std::move(strings_[0]), std::move(strings_[1]));
      return;
    }
    check(strings_.size() == 1 && has_number_, "{}: entry {} of model.vocab is no token and score",
          file_.name, file_.vocabulary.size());
    check(file_.vocabulary.size() <= kLargestId, "{}: more than {} tokens", file_.name, kLargestId);
    file_.vocabulary.push_back(
        {std::move(strings_[0]), static_cast<TokenId>(file_.vocabulary.size()), number_});
  }

  TokenizerFile& file_;
  Place place_ = Place::settings;
  bool list_ = false, fresh_ = true, has_number_ = false;
  bool vocabulary_done_ = false, merges_done_ = false;
  std::size_t depth_ = 0, vocabulary_depth_ = 0;
  std::string key_;                   // the last one
  std::vector<std::string> path_;     // the keys of what is open
  std::vector<char> ends_;            // the brackets that close what is open
  std::vector<std::size_t> keys_;     // how many it has so far
  std::vector<std::string> strings_;  // of an entry of a list
  double number_ = 0;
};

}  // namespace

TokenizerFile TokenizerFile::read(const std::string& path) {
  return parse(read_file(path, kLargestFile), path);
}

TokenizerFile TokenizerFile::parse(std::string_view text, const std::string& name) try {
  check(text.size() <= kLargestFile, "{}: {} bytes, at most {} are expected", name, text.size(),
        kLargestFile);
  TokenizerFile file;
  file.name = name;
  Reader reader(file);
  Json::sax_parse(text.begin(), text.end(), &reader);
  file.config = Config::parse(file.settings, name);
  return file;
} catch (const Json::exception&) {
  fail("{}: a number is out of range", name);
} catch (const std::bad_alloc&) {
  fail<OutOfMemory>("{}: out of memory", name);
}

TokenizerFile TokenizerFile::from_settings(std::string settings, const std::string& name) {
  TokenizerFile file;
  file.name = name;
  file.settings = std::move(settings);
  file.config = Config::parse(file.settings, name);
  return file;
}

}  // namespace qkv::text

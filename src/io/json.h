// A config.json, read with care: every getter says which file and which key is wrong, and how.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qkv {

// A JSON object. A key that is null counts as absent, as Hugging Face writes what is not set.
// Copies are cheap: they share what was read.
class Config {
 public:
  Config();  // an empty object, where every getter gives its fallback

  // Throws Error unless the file is one JSON object of at most 16 MiB, 64 levels and a million
  // values, in which no object has a key twice.
  static Config read(const std::string& path);
  // `name` stands for the file in messages.
  static Config parse(std::string_view text, const std::string& name);

  bool has(const std::string& key) const;       // present and not null
  bool mentions(const std::string& key) const;  // present, be it as null
  bool is_text(const std::string& key) const;   // present as a text
  std::vector<std::string> keys() const;        // those that has() sees, sorted

  // Throw Error when the key is absent, has another type or is out of [min, max]; the _or forms
  // give the fallback when it is absent, and still throw when it is wrong.
  std::int64_t integer(const std::string& key, std::int64_t min, std::int64_t max) const;
  std::int64_t integer_or(const std::string& key, std::int64_t fallback, std::int64_t min,
                          std::int64_t max) const;
  double number(const std::string& key, double min, double max) const;
  double number_or(const std::string& key, double fallback, double min, double max) const;
  bool flag(const std::string& key) const;
  bool flag_or(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  // Its messages name keys as "rope_scaling.factor".
  Config object(const std::string& key) const;

  // Lists; absent is empty, so ask has() where that makes a difference. One number or text by
  // itself counts as a list of one: eos_token_id is written both ways.
  std::vector<std::int64_t> integers(const std::string& key, std::int64_t min,
                                     std::int64_t max) const;
  std::vector<double> numbers(const std::string& key, double min, double max) const;
  // A list of lists: [[5], [6, 7]].
  std::vector<std::vector<std::int64_t>> integer_lists(const std::string& key, std::int64_t min,
                                                       std::int64_t max) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<Config> objects(const std::string& key) const;
  // A list of these two: ["[SEP]", 102].
  std::pair<std::string, std::int64_t> text_and_integer(const std::string& key, std::int64_t min,
                                                        std::int64_t max) const;
  // Every key of this object with its text, as in the weight_map of an index.
  std::map<std::string, std::string> all_texts() const;

  // "config.json: rope_scaling.factor", for messages of one's own.
  std::string where(const std::string& key) const;
  const std::string& name() const;  // of the file

 private:
  struct Value;  // keeps the JSON library out of this header
  explicit Config(std::shared_ptr<const Value> value) : value_(std::move(value)) {}

  std::shared_ptr<const Value> value_;
};

// The text of a JSON object with `key` set to `value`, itself JSON, or without it where `value` is
// empty; the other keys keep their order. `name` stands for the file in messages.
std::string with_key(std::string_view text, const std::string& name, const std::string& key,
                     const std::string& value);

}  // namespace qkv

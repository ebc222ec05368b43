#include "io/json_texts.h"

#include <nlohmann/json.hpp>

#include "core/check.h"

namespace qkv {
namespace {

using Json = nlohmann::json;

// Takes what the parser sees as it sees it: nothing but the texts becomes memory.
class TextList final : public nlohmann::json_sax<Json> {
 public:
  explicit TextList(const std::string& name) : name_(name) {}

  bool string(string_t& value) override {
    if (!inside_) return other();
    texts.push_back(std::move(value));
    return true;
  }
  bool start_array(std::size_t) override {
    if (inside_) return other();
    return inside_ = true;
  }
  bool end_array() override { return true; }
  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool start_object(std::size_t) override { return other(); }
  bool key(string_t&) override { return other(); }
  bool end_object() override { return other(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail("{}: no JSON from byte {} on", name_, position);
  }

  std::vector<std::string> texts;

 private:
  bool other() {
    if (!inside_) fail("{}: a list of texts is expected", name_);
    fail("{}: a list of texts is expected, but behind {} of them comes something else", name_,
         texts.size());
  }

  const std::string& name_;
  bool inside_ = false;
};

}  // namespace

std::vector<std::string> parse_json_texts(std::string_view text, const std::string& name) {
  TextList list(name);
  Json::sax_parse(text.begin(), text.end(), &list);
  return std::move(list.texts);
}

}  // namespace qkv

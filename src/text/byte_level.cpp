// ByteLevel: the words of GPT-2, and bytes written as characters.
#include <utility>

#include "text/byte_alphabet.h"
#include "text/gpt2_words.h"
#include "text/pre_tokenizer.h"

namespace qkv::text {
namespace {

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool prefix_space, bool split, bool bytes_stay_bytes)
      : prefix_space_(prefix_space), split_(split), bytes_stay_bytes_(bytes_stay_bytes) {}

  void cut(Words& words, Words& spare, Allowance& /*allowance*/) const override {
    if (prefix_space_) add_spaces(words, spare);
    if (split_) {
      spare.parts.clear();
      for (const Part& part : words.parts) append_gpt2_words(words.text.text, part, spare.parts);
      std::swap(words.parts, spare.parts);
    }
    if (!bytes_stay_bytes_) write_bytes(words, spare);
  }

 private:
  static void start(const Words& words, Words& spare) {
    spare.parts.clear();
    spare.text.clear();
    spare.text.tracked = words.text.tracked;
  }

  static void add_spaces(Words& words, Words& spare) {
    start(words, spare);
    for (const Part& part : words.parts) {
      const std::size_t begin = spare.text.text.size();
      if (words.text.text[part.begin] != ' ') {
        spare.text.append(" ", words.text.tracked ? words.text.from[part.begin] : Origin{});
      }
      spare.text.append(words.text, part.begin, part.end);
      spare.parts.push_back({begin, spare.text.text.size()});
    }
    std::swap(words, spare);
  }

  static void write_bytes(Words& words, Words& spare) {
    start(words, spare);
    for (const Part& part : words.parts) {
      const std::size_t begin = spare.text.text.size();
      for (std::size_t i = part.begin; i < part.end; ++i) {
        spare.text.append(to_utf8(byte_character(words.text.text[i])),
                          words.text.tracked ? words.text.from[i] : Origin{});
      }
      spare.parts.push_back({begin, spare.text.text.size()});
    }
    std::swap(words, spare);
  }

  bool prefix_space_, split_, bytes_stay_bytes_;
};

}  // namespace

PreTokenizerPtr make_byte_level(const Config& config, const PreTokenizerOptions& options) {
  if (config.text("type") != "ByteLevel") return nullptr;
  return std::make_unique<ByteLevel>(config.flag_or("add_prefix_space", true),
                                     config.flag_or("use_regex", true), options.bytes_stay_bytes);
}

}  // namespace qkv::text

// Metaspace: spaces become a character of words, which begin with it.
#include <utility>

#include "core/check.h"
#include "io/shown.h"
#include "text/metaspace.h"
#include "text/pre_tokenizer.h"

namespace qkv::text {
namespace {

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceOptions options) : options_(std::move(options)) {}

  void cut(Words& words, Words& spare, Allowance& /*allowance*/) const override {
    spare.parts.clear();
    spare.text.clear();
    spare.text.tracked = words.text.tracked;
    spare.offset = words.offset;
    for (const Part& part : words.parts) {
      const std::size_t begin = spare.text.text.size();
      const bool first = words.text.tracked ? words.text.from[part.begin].begin == 0
                                            : words.offset + part.begin == 0;
      write(words.text, part, first, spare.text);
      if (options_.split) {
        append_words(spare.text.text, begin, spare.parts);
      } else {
        spare.parts.push_back({begin, spare.text.text.size()});
      }
    }
    std::swap(words, spare);
  }

 private:
  void write(const AlignedText& old, const Part& part, bool first, AlignedText& result) const {
    const std::string_view text = std::string_view(old.text).substr(0, part.end);
    const std::string& mark = options_.replacement;
    const auto origin = [&](std::size_t i) { return old.tracked ? old.from[i] : Origin{}; };
    const bool wanted = options_.prepend == MetaspacePrepend::always ||
                        (options_.prepend == MetaspacePrepend::first && first);
    if (wanted && text[part.begin] != ' ' && !text.substr(part.begin).starts_with(mark)) {
      result.append(mark, origin(part.begin));
    }
    for (std::size_t i = part.begin; i < part.end;) {
      if (text[i] == ' ') {
        result.append(mark, origin(i++));
        continue;
      }
      const std::size_t space = std::min(text.find(' ', i), part.end);
      result.append(old, i, space);
      i = space;
    }
  }

  void append_words(std::string_view text, std::size_t begin, std::vector<Part>& parts) const {
    const std::string& mark = options_.replacement;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find(mark, begin + 1), text.size());
      parts.push_back({begin, end});
      begin = end;
    }
  }

  MetaspaceOptions options_;
};

}  // namespace

MetaspaceOptions metaspace_options(const Config& config) {
  MetaspaceOptions options;
  options.replacement = config.text("replacement");
  check(!options.replacement.empty() &&
            utf8_size(options.replacement[0]) == options.replacement.size(),
        "{} must be one character", config.where("replacement"));
  const std::string scheme = config.text_or("prepend_scheme", "always");
  check(scheme == "always" || scheme == "first" || scheme == "never",
        "{}: '{}' is neither always, first nor never", config.where("prepend_scheme"),
        shown_name(scheme));
  options.prepend = scheme == "always"  ? MetaspacePrepend::always
                    : scheme == "first" ? MetaspacePrepend::first
                                        : MetaspacePrepend::never;
  if (!config.flag_or("add_prefix_space", true)) {
    check(!config.has("prepend_scheme") || scheme == "never",
          "{} is false, but prepend_scheme is '{}'", config.where("add_prefix_space"), scheme);
    options.prepend = MetaspacePrepend::never;
  }
  options.split = config.flag_or("split", true);
  return options;
}

PreTokenizerPtr make_metaspace(const Config& config) {
  if (config.text("type") != "Metaspace") return nullptr;
  return std::make_unique<Metaspace>(metaspace_options(config));
}

}  // namespace qkv::text

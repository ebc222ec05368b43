#include "text/normalizer.h"

#include <utility>

#include "core/check.h"
#include "io/shown.h"
#include "text/byte_alphabet.h"
#include "text/normal_form.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace qkv::text {
namespace {

// Passes every character to f, which tells the Rewriter what becomes of it.
template <class F>
class Rewrite final : public Normalizer {
 public:
  explicit Rewrite(F f) : f_(std::move(f)) {}
  void rewrite(AlignedText& text, AlignedText& spare, Allowance& /*allowance*/) const override {
    Rewriter out(text, spare);
    for (std::size_t i = 0; i < text.text.size();) {
      const CodePoint c = utf8_at(text.text, i);
      i += c.size;
      f_(c.value, out);
    }
    std::swap(text, spare);
  }

 private:
  F f_;
};

template <class F>
NormalizerPtr rewrite(F f) {
  return std::make_unique<Rewrite<F>>(std::move(f));
}

void keep_unless(bool drop, char32_t c, Rewriter& out) { drop ? out.skip(1) : out.replace(c); }

void put_lowercase(char32_t c, Rewriter& out) {
  out.replace(lowercase(c));
  if (c == 0x130) out.add(0x307);
}

// The control characters and spaces of sentencepiece's nmt rules.
void put_nmt(char32_t c, Rewriter& out) {
  const bool control = (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                       c == 0x8F || c == 0x9F;
  const bool space = c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  keep_unless(control, space ? U' ' : c, out);
}

void put_bytes(char32_t c, Rewriter& out) {
  const std::string bytes = to_utf8(c);
  out.replace(byte_character(bytes[0]));
  for (std::size_t i = 1; i < bytes.size(); ++i) out.add(byte_character(bytes[i]));
}

class Form final : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void rewrite(AlignedText& text, AlignedText& spare, Allowance& /*allowance*/) const override {
    if (is_ascii(text.text)) return;
    normalize(form_, text, spare);
    std::swap(text, spare);
  }

 private:
  NormalForm form_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void rewrite(AlignedText& text, AlignedText& spare, Allowance& /*allowance*/) const override {
    std::size_t begin = 0, end = text.text.size();
    while (left_ && begin < end && is_space(utf8_at(text.text, begin).value)) {
      begin += utf8_size(text.text[begin]);
    }
    while (right_ && end > begin) {
      const std::size_t last = utf8_before(text.text, end);
      if (!is_space(utf8_at(text.text, last).value)) break;
      end = last;
    }
    if (begin == 0 && end == text.text.size()) return;
    spare.clear();
    spare.tracked = text.tracked;
    spare.append(text, begin, end);
    std::swap(text, spare);
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  void rewrite(AlignedText& text, AlignedText& spare, Allowance& allowance) const override {
    if (text.text.empty()) return;
    allowance.check_bytes(text.text.size() + text_.size(), where());
    spare.clear();
    spare.tracked = text.tracked;
    spare.append(text_, text.tracked ? text.from.front() : Origin{});
    spare.append(text, 0, text.text.size());
    std::swap(text, spare);
  }

 private:
  std::string text_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void rewrite(AlignedText& text, AlignedText& spare, Allowance& allowance) const override {
    std::size_t kept = 0;
    spare.clear();
    spare.tracked = text.tracked;
    Pattern::Finder finder(pattern_, allowance);
    finder.each_match(text.text, [&](std::size_t begin, std::size_t end) {
      allowance.check_bytes(spare.text.size() + (begin - kept) + content_.size(), where());
      spare.append(text, kept, begin);
      spare.append(content_, text.tracked && end > 0 ? text.from[end - 1] : Origin{});
      kept = end;
    });
    spare.append(text, kept, text.text.size());
    std::swap(text, spare);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  void rewrite(AlignedText& text, AlignedText& spare, Allowance& allowance) const override {
    for (const NormalizerPtr& step : steps_) step->apply(text, spare, allowance);
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

NormalizerPtr make_normalizer_sequence(const Config& config) {
  std::vector<NormalizerPtr> steps;
  for (const Config& step : config.objects("normalizers")) steps.push_back(make_normalizer(step));
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

NormalizerPtr make_normalizer_unplaced(const Config& config) {
  if (auto bert = make_bert_normalizer(config)) return bert;
  if (auto charsmap = make_charsmap_normalizer(config)) return charsmap;
  const std::string type = config.text("type");
  if (type == "Sequence") return make_normalizer_sequence(config);
  if (type == "NFC") return std::make_unique<Form>(NormalForm::nfc);
  if (type == "NFD") return std::make_unique<Form>(NormalForm::nfd);
  if (type == "NFKC") return std::make_unique<Form>(NormalForm::nfkc);
  if (type == "NFKD") return std::make_unique<Form>(NormalForm::nfkd);
  if (type == "Lowercase") return rewrite(put_lowercase);
  if (type == "Nmt") return rewrite(put_nmt);
  if (type == "ByteLevel") return rewrite(put_bytes);
  if (type == "StripAccents") {
    return rewrite([](char32_t c, Rewriter& out) { keep_unless(is_combining_mark(c), c, out); });
  }
  if (type == "Strip") {
    return std::make_unique<Strip>(config.flag("strip_left"), config.flag("strip_right"));
  }
  if (type == "Prepend") return std::make_unique<Prepend>(config.text("prepend"));
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern::from(config.object("pattern")),
                                     config.text("content"));
  }
  fail(
      "{}: '{}' is not supported; supported are BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, "
      "StripAccents, Strip, Replace, Prepend, Precompiled, Nmt, ByteLevel and Sequence",
      config.where("type"), shown_name(type));
}

}  // namespace

NormalizerPtr make_normalizer(const Config& config) {
  NormalizerPtr made = make_normalizer_unplaced(config);
  made->set_where(config.where("type"));
  return made;
}

}  // namespace qkv::text

// BERT's cleaning: controls away, spaces made equal, Chinese characters set apart, accents and case
// dropped.
#include <array>

#include "text/normal_form.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace qkv::text {
namespace {

struct BertOptions {
  bool clean = true, chinese = true, accents = true, lower = true;  // accents: strip them
};

bool is_removed(char32_t c) { return c == 0 || c == 0xFFFD || is_control(c); }
bool is_bert_space(char32_t c) { return c == '\t' || c == '\n' || c == '\r' || is_space(c); }

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(BertOptions options) : options_(options) {
    for (unsigned c = 0; c < 128; ++c) {
      ascii_[c] = static_cast<unsigned char>(options_.lower ? lowercase(c) : c);
      if (!options_.clean) continue;
      if (is_bert_space(c)) ascii_[c] = ' ';
      if (is_removed(c)) ascii_[c] = kRemoved;
    }
  }

  void rewrite(AlignedText& text, AlignedText& spare, Allowance& /*allowance*/) const override {
    if (text.tracked) return apply_in_steps(text, spare);
    // No form of normalisation reaches across an ASCII character, so runs can go separately.
    AlignedText run, run_spare;
    spare.clear();
    spare.tracked = false;
    const std::string& all = text.text;
    for (std::size_t i = 0; i < all.size();) {
      if (static_cast<signed char>(all[i]) >= 0) {
        const unsigned char mapped = ascii_[static_cast<unsigned char>(all[i++])];
        if (mapped != kRemoved) spare.text.push_back(static_cast<char>(mapped));
        continue;
      }
      std::size_t end = i + 1;
      while (end < all.size() && static_cast<signed char>(all[end]) < 0) ++end;
      // A mark that follows ASCII has nothing there to combine with when decomposing.
      run.text.assign(all, i, end - i);
      apply_in_steps(run, run_spare);
      spare.text += run.text;
      i = end;
    }
    std::swap(text, spare);
  }

 private:
  static constexpr unsigned char kRemoved = 0xFF;

  void apply_in_steps(AlignedText& text, AlignedText& spare) const {
    const auto step = [&](auto&& put) {
      Rewriter out(text, spare);
      for (std::size_t i = 0; i < text.text.size();) {
        const CodePoint c = utf8_at(text.text, i);
        i += c.size;
        put(c.value, out);
      }
      std::swap(text, spare);
    };
    if (options_.clean) {
      step([](char32_t c, Rewriter& out) {
        is_removed(c) ? out.skip(1) : out.replace(is_bert_space(c) ? U' ' : c);
      });
    }
    if (options_.chinese) {
      step([](char32_t c, Rewriter& out) {
        if (!is_chinese_character(c)) return out.replace(c);
        out.replace(' ');
        out.add(c);
        out.add(' ');
      });
    }
    if (options_.accents) {
      normalize(NormalForm::nfd, text, spare);
      std::swap(text, spare);
      step([](char32_t c, Rewriter& out) { is_nonspacing_mark(c) ? out.skip(1) : out.replace(c); });
    }
    if (options_.lower) {
      step([](char32_t c, Rewriter& out) {
        out.replace(lowercase(c));
        if (c == 0x130) out.add(0x307);
      });
    }
  }

  BertOptions options_;
  std::array<unsigned char, 128> ascii_{};
};

}  // namespace

NormalizerPtr make_bert_normalizer(const Config& config) {
  if (config.text("type") != "BertNormalizer") return nullptr;
  const bool lower = config.flag_or("lowercase", true);
  return std::make_unique<BertNormalizer>(
      BertOptions{config.flag_or("clean_text", true), config.flag_or("handle_chinese_chars", true),
                  config.flag_or("strip_accents", lower), lower});
}

}  // namespace qkv::text

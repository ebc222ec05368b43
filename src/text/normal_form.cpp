#include "text/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "text/unicode_ages.h"

namespace qkv::text {
namespace {

// A character and what it does to the text before: see Rewriter::put.
struct Change {
  char32_t value = 0;
  int change = 0;
  int combining_class = 0;
};

int combining_class(char32_t c) {
  if (c < 0x300 || is_mark_since_9(c)) return 0;
  return static_cast<int>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
}

template <class Emit>
void decompose(char32_t c, bool compatible, Emit&& emit) {
  if (c < 0x80 || is_decomposed_since_9(c)) return emit(c, true);
  std::array<utf8proc_int32_t, 32> parts;  // at most 18 in Unicode
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                              static_cast<utf8proc_ssize_t>(parts.size()), options, nullptr);
  if (count <= 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) return emit(c, true);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    emit(static_cast<char32_t>(parts[static_cast<std::size_t>(i)]), i == 0);
  }
}

std::optional<char32_t> compose(char32_t first, char32_t second) {
  if (second < 0x300 || is_mark_since_9(second)) return {};
  std::array<utf8proc_int32_t, 4> pair{static_cast<utf8proc_int32_t>(first),
                                       static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (utf8proc_normalize_utf32(pair.data(), 2, options) != 1) return {};
  return static_cast<char32_t>(pair[0]);
}

// Takes decomposed characters in canonical order and puts them together again.
class Composer {
 public:
  explicit Composer(Rewriter& out) : out_(out) {}

  void take(const Change& c) {
    if (!starter_) {
      if (c.combining_class != 0) return put(c);
      starter_ = c;
      return;
    }
    const bool blocked = last_class_ && *last_class_ >= c.combining_class;
    if (!blocked) {
      if (const auto composed = compose(starter_->value, c.value)) {
        starter_->value = *composed;
        starter_->change += c.change - 1;
        return;
      }
    }
    if (c.combining_class == 0) {
      flush();
      starter_ = c;
      return;
    }
    waiting_.push_back(c);
    last_class_ = c.combining_class;
  }

  void flush() {
    if (starter_) put(*starter_);
    for (const Change& c : waiting_) put(c);
    waiting_.clear();
    starter_.reset();
    last_class_.reset();
  }

 private:
  void put(const Change& c) { out_.put(c.value, c.change); }

  Rewriter& out_;
  std::optional<Change> starter_;
  std::optional<int> last_class_;
  std::vector<Change> waiting_;  // marks after the starter that did not compose with it
};

}  // namespace

void normalize(NormalForm form, const AlignedText& old, AlignedText& result) {
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  Rewriter out(old, result);
  Composer composer(out);
  std::vector<Change> marks;  // a run of characters that may still change places
  const auto flush = [&] {
    std::ranges::stable_sort(marks, {}, &Change::combining_class);
    for (const Change& c : marks) composed ? composer.take(c) : out.put(c.value, c.change);
    marks.clear();
  };
  for (std::size_t i = 0; i < old.text.size();) {
    const CodePoint c = utf8_at(old.text, i);
    i += c.size;
    decompose(c.value, compatible, [&](char32_t part, bool first) {
      const int order = combining_class(part);
      if (order == 0) flush();
      marks.push_back({part, first ? 0 : 1, order});
      if (order == 0) flush();
    });
  }
  flush();
  composer.flush();
}

}  // namespace qkv::text

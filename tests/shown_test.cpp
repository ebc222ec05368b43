#include "io/shown.h"

#include <gtest/gtest.h>

#include "io/file_kind.h"

namespace qkv {
namespace {

using namespace std::string_literals;

TEST(Shown, LeavesTextAsItIs) {
  for (const std::string& text :
       {"plain"s, "größer"s, "日本語"s, "🙂"s, "עברית"s, "\u200f"s, ""s}) {
    EXPECT_EQ(shown_name(text), text);
    EXPECT_EQ(shown_text(text), text);
  }
  EXPECT_EQ(shown_text("two\nlines\tof text"), "two\nlines\tof text");
  EXPECT_EQ(shown_name("two\nlines\tof text"), "two?lines?of text");
}

TEST(Shown, TakesOutWhatATerminalObeys) {
  for (int code = 0; code < 0xa0; ++code) {
    if (code >= 0x20 && code < 0x7f) continue;
    const std::string text =
        code < 0x80 ? std::string(1, static_cast<char>(code)) : "\xc2"s + static_cast<char>(code);
    const bool stays = text == "\n" || text == "\t";
    EXPECT_EQ(shown_text("a" + text + "b"),
              stays ? "a" + text + "b" : "a" + std::string(text.size(), '?') + "b");
  }
  for (const std::string& turns : {"\u202a"s, "\u202d"s, "\u202e"s, "\u2066"s, "\u2069"s}) {
    EXPECT_EQ(shown_text(turns), "???");
  }
}

TEST(Shown, TakesOutWhatIsNoUtf8) {
  // Lone and missing continuations, overlong forms, a surrogate, beyond U+10FFFF.
  for (const std::string& bytes :
       {"\x80"s, "\x9b"s, "\xc3"s, "\xe2\x80"s, "\xf0\x9f\x99"s, "\xc0\x9b"s, "\xc1\x9b"s,
        "\xe0\x80\x9b"s, "\xf0\x80\x80\x9b"s, "\xed\xa0\x80"s, "\xf4\x90\x80\x80"s, "\xff\xfe"s}) {
    EXPECT_EQ(shown_text("a" + bytes + "b"), "a" + std::string(bytes.size(), '?') + "b");
  }
}

TEST(Shown, NamesAreCutBetweenCharacters) {
  const std::string shown = shown_name("a" + std::string(119, 'x') + "é and more");
  EXPECT_EQ(shown, "a" + std::string(119, 'x') + "...");
  EXPECT_EQ(shown_name(std::string(119, 'x') + "é and more"), std::string(119, 'x') + "...");
  EXPECT_EQ(shown_name(std::string(500, '\x80')).size(), 3u);  // no place to cut
}

TEST(FileKind, KnowsTextWhereverItIsCut) {
  std::string text;
  while (text.size() < 600) text += "größer, ";
  for (std::size_t before = 0; before < 16; ++before) {
    EXPECT_EQ(file_kind(std::string(before, 'x') + text), "a text file") << before;
  }
  EXPECT_EQ(file_kind("[1, 2]"), "a JSON file");
  EXPECT_EQ(file_kind("   "), "a text file");
  EXPECT_EQ(file_kind("\x01\x02\x03\x04"), "");
  EXPECT_EQ(file_kind(std::string(257, 'x') + "ustar"), "a tar archive; unpack it first");
  EXPECT_FALSE(is_lfs_pointer("version 2 of a text"));
}

}  // namespace
}  // namespace qkv

// What every page of ours has to be.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace qkv::testing {

// Every element is closed in order. The page closes even what HTML lets stand open.
inline void expect_well_formed(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = html.find('<', at)) != std::string::npos;) {
    const std::size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag[0] == '!' || tag.back() == '/') continue;
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (name[0] != '/') {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    ASSERT_EQ("/" + open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

// A page with drawings, for light and dark, that asks for nothing from anywhere.
inline void expect_stands_alone(const std::string& html) {
  using ::testing::HasSubstr;
  using ::testing::Not;
  expect_well_formed(html);
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  for (const char* reference : {"http://", "https://", "src=", "href=", "url(", "<script", "nan"}) {
    EXPECT_THAT(html, Not(HasSubstr(reference)));
  }
}

}  // namespace qkv::testing

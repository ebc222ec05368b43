// Whom the viewer answers, and that it stops when nobody waits for the answer.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "qkv/viewer.h"
#include "support/goldens.h"
#include "viewer/host.h"

namespace qkv {
namespace {

using viewer::is_loopback;
using viewer::is_loopback_authority;
using viewer::is_same_origin;

TEST(ViewerAdmission, LoopbackIsAnAddressNotASpelling) {
  for (const char* host : {"localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "127.255.255.254",
                           "::1", "[::1]", "0:0:0:0:0:0:0:1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"", "127.evil.com", "127.", "127.1", "127.0.0.1.evil.com", "0x7f.0.0.1",
                           "128.0.0.1", "0.0.0.0", "::", "::2", "1::1", "localhost.evil.com",
                           "evil-localhost", " 127.0.0.1", "127.0.0.1 ", "[127.0.0.1"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
  EXPECT_FALSE(is_loopback(std::string_view("127.0.0.1\0.evil.com", 19)));
}

TEST(ViewerAdmission, AnAuthorityMayHaveAPort) {
  for (const char* host : {"localhost:8080", "127.0.0.2:1", "[::1]:65535", "[::1]", "localhost:"}) {
    EXPECT_TRUE(is_loopback_authority(host)) << host;
  }
  for (const char* host :
       {"::1", "[::1", "[::1]8080", "[::1]:x", "localhost:80:80", "localhost:123456",
        "localhost:-1", "a@localhost", "localhost:80@evil"}) {
    EXPECT_FALSE(is_loopback_authority(host)) << host;
  }
}

TEST(ViewerAdmission, AnOriginIsTheHostThatServedThePage) {
  EXPECT_TRUE(is_same_origin("http://localhost:8080", "localhost:8080"));
  EXPECT_TRUE(is_same_origin("https://Qkv.example", "qkv.example"));  // behind a TLS proxy
  for (const char* origin : {"null", "", "localhost:8080", "http://localhost", "http://evil.com",
                             "http://localhost:8080.evil.com", "ftp://localhost:8080"}) {
    EXPECT_FALSE(is_same_origin(origin, "localhost:8080")) << origin;
  }
}

TEST(ViewerAdmission, AHeadIsRefusedWithoutItsBody) {
  const auto never = [](const Viewer::Query&) -> AttentionPicture { throw Error("asked"); };
  const Viewer viewer(never, {.token = "secret"});
  ViewerRequest head{.method = "POST", .path = "/api/look", .host = "localhost:1"};
  EXPECT_EQ(viewer.refuse(head)->status, 401);
  head.token = "secret";
  EXPECT_FALSE(viewer.refuse(head).has_value());
  head.origin = "http://evil.example";
  EXPECT_EQ(viewer.refuse(head)->status, 403);
  head.origin = "http://localhost:1";
  EXPECT_FALSE(viewer.refuse(head).has_value());
  head.host = "evil.example";
  EXPECT_EQ(viewer.refuse(head)->status, 403);
}

TEST(ViewerAdmission, ALookStopsBetweenLayersOnceNobodyWaits) {
  const auto model = load_model(test::golden("gpt2"));
  int asked = 0;
  LookOptions options{.cancelled = [&] { return ++asked == 2; }};
  EXPECT_ERROR("look: cancelled", look(*model, {.ids = {1, 2, 3}}, options));
  EXPECT_EQ(asked, 2);  // before its second layer
  options.cancelled = [] { return false; };
  EXPECT_EQ(look(*model, {.ids = {1, 2, 3}}, options).maps[0].layers.size(), 2u);
}

TEST(ViewerAdmission, ALookWhoseClientLeftDoesNotBegin) {
  bool looked = false;
  Viewer viewer(
      [&](const Viewer::Query&) -> AttentionPicture {
        looked = true;
        throw Error("looked");
      },
      {});
  ViewerRequest request{.method = "POST",
                        .path = "/api/look",
                        .body = R"({"text": "a"})",
                        .host = "localhost",
                        .cancelled = [] { return true; }};
  EXPECT_EQ(viewer(request).status, 400);
  EXPECT_FALSE(looked);
}

}  // namespace
}  // namespace qkv

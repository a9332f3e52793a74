#include "base/log.h"

#include <gmock/gmock.h>

#include "base/log_level.h"

namespace weft {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class Log : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log::start(); }
  void TearDown() override { log::set_format("text"); }
  template <typename Body>
  static std::string said(Body body) {
    ::testing::internal::CaptureStderr();
    body();
    return ::testing::internal::GetCapturedStderr();
  }
};

const std::vector<log::Field> kFields = {{"path", "/v1/x"}, {"seconds", 0.25}, {"status", 200}, {"id", "a b\"\n\xff"}};

TEST_F(Log, FieldsFollowTheMessage) {
  const std::string line = said([] { log::event(log::Level::warn, "answered", kFields); });
  EXPECT_THAT(line, MatchesRegex("20..-..-.. ..:..:...... [^\n]*\n"));
  EXPECT_THAT(line, EndsWith(" answered path=/v1/x seconds=0.250 status=200 id=\"a b\\\"\\n\\u00ff\"\n"));
  EXPECT_THAT(said([] { log::info("plain"); }), EndsWith(" plain\n")) << "fields are of one line only";
}

TEST_F(Log, JsonHasThemAsMembersAndTakesAnyBytes) {
  ASSERT_TRUE(log::set_format("json"));
  const std::string line = said([] { log::event(log::Level::info, "say \"\x01\"", kFields); });
  EXPECT_THAT(line, StartsWith("{\"time\":\"20"));
  EXPECT_THAT(line, HasSubstr("Z\",\"level\":\"info\",\"message\":\"say \\\"\\u0001\\\"\",\"path\":\"/v1/x\",\"seconds\":0.250,"
                              "\"status\":200,\"id\":\"a b\\\"\\n\\u00ff\"}\n"));
  EXPECT_THAT(said([] { log::error("{}", 5); }), HasSubstr("\"level\":\"error\",\"message\":\"5\"}\n"));
}

TEST_F(Log, OnlyTwoFormatsAreKnown) {
  EXPECT_TRUE(log::set_format("text"));
  EXPECT_FALSE(log::set_format("yaml"));
  EXPECT_FALSE(log::set_format(""));
}

}  // namespace
}  // namespace weft

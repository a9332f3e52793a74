#include "server/trace_context.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";
const std::string kGood = "00-" + kTrace + "-" + kParent + "-01";

TEST(TraceContext, IsReadAndPassedOnWithASpanOfOurs) {
  const auto context = parse_traceparent(kGood);
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->parent_id, kParent);
  EXPECT_EQ(context->flags, "01");
  EXPECT_EQ(context->header("0123456789abcdef"), "00-" + kTrace + "-0123456789abcdef-01");
}

TEST(TraceContext, FlagsThatAreNotKnownAreNotPassedOn) {
  const auto sent = [](const std::string& flags) {
    return parse_traceparent("00-" + kTrace + "-" + kParent + "-" + flags)->header(kParent).substr(53);
  };
  EXPECT_EQ(sent("00"), "00");
  EXPECT_EQ(sent("02"), "00");
  EXPECT_EQ(sent("03"), "01");
  EXPECT_EQ(sent("ff"), "01");
}

TEST(TraceContext, OfLaterVersionsTheKnownPartIsRead) {
  EXPECT_TRUE(parse_traceparent("01-" + kTrace + "-" + kParent + "-00"));
  EXPECT_TRUE(parse_traceparent("cc-" + kTrace + "-" + kParent + "-00-what-comes"));
  EXPECT_FALSE(parse_traceparent("cc-" + kTrace + "-" + kParent + "-00.what-comes"));
}

TEST(TraceContext, WhatIsNotOneIsIgnored) {
  const std::string zeros(32, '0');
  for (const std::string& header :
       {std::string(), std::string("00"), kGood + "-", kGood + "0", "ff" + kGood.substr(2), "0g" + kGood.substr(2),
        "00-" + zeros + "-" + kParent + "-01", "00-" + kTrace + "-" + zeros.substr(16) + "-01",
        "00-" + kTrace + "-" + kParent + "-0", "00-" + kTrace + "-" + kParent + "-0X",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01", "00_" + kTrace + "-" + kParent + "-01", " " + kGood,
        std::string(55, '\0')})
    EXPECT_FALSE(parse_traceparent(header)) << header;
}

}  // namespace
}  // namespace weft

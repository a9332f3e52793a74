#include "bench_client/sse_parser.h"

#include <gmock/gmock.h>

#include <vector>

#include "base/check.h"

namespace weft::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Texts = std::vector<std::string>;

/// The events of a stream that comes in these pieces.
Texts events(const Texts& pieces) {
  SseParser parser;
  Texts out;
  for (const std::string& piece : pieces) parser.feed(piece, [&](std::string_view data) { out.emplace_back(data); });
  return out;
}

TEST(SseParser, GivesTheDataOfEvents) {
  EXPECT_THAT(events({"data: one\n\ndata:two\n\ndata:  three\n\n"}), ElementsAre("one", "two", " three"));
  EXPECT_THAT(events({"data: a\ndata: b\n\n"}), ElementsAre("a\nb"));
  EXPECT_THAT(events({"data\n\ndata:\ndata:\n\n"}), ElementsAre("", "\n"));
}

TEST(SseParser, SkipsCommentsAndOtherFields) {
  EXPECT_THAT(events({": ping\n\nevent: message\nid: 7\nretry: 10\ndata: x\n: more\nDATA: no\n data: no\n\n\n\n"}),
              ElementsAre("x"));
  EXPECT_THAT(events({"event: nothing\n\n"}), IsEmpty());
}

TEST(SseParser, AnEventThatIsNotEndedIsNone) { EXPECT_THAT(events({"data: a\n\ndata: b\n"}), ElementsAre("a")); }

TEST(SseParser, LinesEndInAnyOfThreeWays) {
  EXPECT_THAT(events({"data: a\r\ndata: b\r\n\r\n"}), ElementsAre("a\nb")) << "CR LF is one end, not two";
  EXPECT_THAT(events({"data: a\r\n\r\ndata: b\r\rdata: c\n\n"}), ElementsAre("a", "b", "c"));
  EXPECT_THAT(events({"\xEF\xBB\xBF"
                      "data: a\n\n\xEF\xBB\xBF"
                      "data: b\n\n"}),
              ElementsAre("a"))
      << "a mark at the very beginning only";
}

TEST(SseParser, HowTheBytesAreCutChangesNothing) {
  const std::string stream =
      "\xEF\xBB\xBF"
      "data: {\"a\": \"\xE2\x82\xAC\"}\r\n\r\n: ping\r\rdata: b\r\ndata\r\ndata: c\n\nid: 1\r\ndata:\r\n\r\ndata: [DONE]\n\n";
  const Texts whole = events({stream});
  ASSERT_THAT(whole, ElementsAre("{\"a\": \"\xE2\x82\xAC\"}", "b\n\nc", "", "[DONE]"));
  Texts bytes;
  for (const char c : stream) bytes.emplace_back(1, c);
  EXPECT_EQ(events(bytes), whole);
  for (size_t i = 0; i <= stream.size(); ++i)
    for (size_t j = i; j <= stream.size(); ++j)
      ASSERT_EQ(events({stream.substr(0, i), stream.substr(i, j - i), stream.substr(j)}), whole) << i << " " << j;
}

TEST(SseParser, AnEndlessEventIsAnError) {
  SseParser parser;
  const std::string piece(1 << 20, 'x');
  const auto feed_on = [&] {
    for (size_t bytes = 0; bytes <= SseParser::kMaxEventBytes; bytes += piece.size())
      parser.feed(piece, [](std::string_view) {});
  };
  EXPECT_THROW(feed_on(), SystemError);
}

}  // namespace
}  // namespace weft::bench

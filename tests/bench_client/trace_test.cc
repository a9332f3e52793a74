#include "bench_client/trace.h"

#include <gmock/gmock.h>

#include "support/user_error.h"

namespace weft::bench {
namespace {

using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Ids = std::vector<int32_t>;

Workload read(const std::string& lines, const TraceSpec& spec = {}) {
  return trace_workload(lines, spec, TokenSource(256), 1, "t.jsonl");
}
Ids part(const Ids& ids, size_t begin, size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

TEST(Trace, RequestsHaveTheirTimesFromTheEarliestOn) {
  const Workload out = read(R"({"timestamp": 3500, "input_length": 9, "output_length": 4}

{"timestamp": 1500, "input_length": 7, "output_length": 5, "more": "ignored"})"
                            "\r\n");
  ASSERT_THAT(out.conversations, SizeIs(2));
  EXPECT_DOUBLE_EQ(*out.conversations[0].start_s, 2);
  EXPECT_DOUBLE_EQ(*out.conversations[1].start_s, 0);
  EXPECT_THAT(out.conversations[0].turns[0].ids, SizeIs(9));
  EXPECT_EQ(out.conversations[0].turns[0].output_tokens, 4);
  EXPECT_DOUBLE_EQ(*read(R"({"timestamp": 1, "input_length": 1, "output_length": 1}
{"timestamp": 3, "input_length": 1, "output_length": 1})",
                         {.seconds_per_unit = 0.5})
                        .conversations[1]
                        .start_s,
                   1);
}

TEST(Trace, EqualHashIdsAreEqualBlocks) {
  const Workload out = read(R"({"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [7, 8]}
{"timestamp": 1, "input_length": 7, "output_length": 1, "hash_ids": [7, 8]}
{"timestamp": 2, "input_length": 12, "output_length": 1, "hash_ids": [7, 9, 8]})",
                            {.block_tokens = 4});
  const Ids &a = out.conversations[0].turns[0].ids, &b = out.conversations[1].turns[0].ids,
            &c = out.conversations[2].turns[0].ids;
  ASSERT_THAT(a, SizeIs(10));
  ASSERT_THAT(b, SizeIs(7));
  ASSERT_THAT(c, SizeIs(12));
  EXPECT_EQ(part(b, 0, 7), part(a, 0, 7));
  EXPECT_EQ(part(c, 0, 4), part(a, 0, 4));
  EXPECT_NE(part(c, 4, 8), part(a, 4, 8));
  EXPECT_EQ(part(c, 8, 12), part(a, 4, 8)) << "wherever it is";
}

TEST(Trace, ConversationsHaveTurnsAndDelays) {
  const Workload out = read(
      R"({"timestamp": 0, "turns": [{"input_length": 5, "output_length": 2}, {"input_length": 3, "output_length": 4, "delay": 250}]})");
  ASSERT_THAT(out.conversations, SizeIs(1));
  const auto& turns = out.conversations[0].turns;
  ASSERT_THAT(turns, SizeIs(2));
  EXPECT_THAT(turns[1].ids, SizeIs(3));
  EXPECT_DOUBLE_EQ(turns[0].delay_s, 0);
  EXPECT_DOUBLE_EQ(turns[1].delay_s, 0.25);
  EXPECT_EQ(out.requests(), 2);
}

TEST(Trace, TextIsTakenAsItIs) {
  const Workload out =
      read(R"({"timestamp": 0, "turns": [{"input": "Hello.", "output_length": 2}, {"input": "And?", "output_length": 4}]})");
  EXPECT_EQ(out.conversations[0].turns[1].text, "And?");
  EXPECT_THAT(out.conversations[0].turns[1].ids, IsEmpty());
}

TEST(Trace, EndsBeforeMoreRequestsThanWanted) {
  const std::string lines =
      R"({"timestamp": 0, "turns": [{"input_length": 5, "output_length": 2}, {"input_length": 3, "output_length": 4}]}
{"timestamp": 1, "turns": [{"input_length": 5, "output_length": 2}, {"input_length": 3, "output_length": 4}]})";
  EXPECT_EQ(read(lines, {.requests = 4}).requests(), 4);
  EXPECT_EQ(read(lines, {.requests = 3}).requests(), 2);
  EXPECT_THAT(user_error([&] { read(lines, {.requests = 1}); }), HasSubstr("--num-prompts"));
}

TEST(Trace, WhatItCannotReadIsNamedByLine) {
  const std::string good = R"({"timestamp": 0, "input_length": 5, "output_length": 2})";
  for (const auto& [line, reason] : std::vector<std::pair<std::string, std::string>>{
           {"{", "JSON object"},
           {"7", "JSON object"},
           {R"({"input_length": 5, "output_length": 2})", "timestamp must be a number, 0 or more: got nothing"},
           {R"({"timestamp": -1, "input_length": 5, "output_length": 2})", "got -1"},
           {R"({"timestamp": "now", "input_length": 5, "output_length": 2})", "timestamp"},
           {R"({"timestamp": 0, "input_length": 0, "output_length": 2})", "input_length must be a whole number, 1 to"},
           {R"({"timestamp": 0, "input_length": 2.5, "output_length": 2})", "input_length"},
           {R"({"timestamp": 0, "input_length": 5})", "output_length"},
           {R"({"timestamp": 0, "input_length": 5, "output_length": 99999999999999999999})", "output_length"},
           {R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": 3})", "hash_ids"},
           {R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": ["a"]})", "hash_ids"},
           {R"({"timestamp": 0, "input": "", "output_length": 2})", "input must be a text"},
           {R"({"timestamp": 0, "turns": []})", "turns"},
           {R"({"timestamp": 0, "turns": [1]})", "a turn must be an object"},
           {R"({"timestamp": 0, "turns": [{"input_length": 5, "output_length": 2}, {"input": "a", "output_length": 2}]})",
            "--tokenizer"}})
    EXPECT_THAT(user_error([&] { read(good + "\n" + line); }), AllOf(HasSubstr(reason), HasSubstr("line 2 of t.jsonl")))
        << line;
  EXPECT_THAT(user_error([] { read(""); }), HasSubstr("t.jsonl"));
}

}  // namespace
}  // namespace weft::bench

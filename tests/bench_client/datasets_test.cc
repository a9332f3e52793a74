#include "bench_client/datasets.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "support/user_error.h"

namespace weft::bench {
namespace {

using nlohmann::json;
using test::user_error;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;
using Ids = std::vector<int32_t>;

constexpr EncodeOptions kPlain{.add_special_tokens = false};

/// That of the bundled model: 1024 tokens, some 400 of them words.
const Tokenizer& tokenizer() {
  static const auto loaded = Tokenizer::load(WEFT_SOURCE_DIR "/models/demo");
  return *loaded;
}
const Turn& turn(const Workload& workload, size_t i) { return workload.conversations.at(i).turns.at(0); }
Ids first(const Ids& ids, size_t count) { return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)}; }
/// All prompts and lengths in one line.
std::string dump(const Workload& workload) {
  json out;
  for (const Conversation& conversation : workload.conversations)
    for (const Turn& t : conversation.turns) out.push_back({t.ids, t.text, t.input_tokens, t.output_tokens});
  return out.dump();
}

TEST(RandomDataset, HasPromptsOfExactlyTheLengthAskedFor) {
  const Workload out = random_workload({.prompts = 7, .input_len = 40, .output_len = 9}, TokenSource(256), 1);
  EXPECT_EQ(out.requests(), 7);
  EXPECT_EQ(out.inexact, 0);
  std::set<Ids> different;
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_THAT(turn(out, i).ids, SizeIs(40));
    EXPECT_EQ(turn(out, i).input_tokens, 40);
    EXPECT_EQ(turn(out, i).output_tokens, 9);
    EXPECT_THAT(turn(out, i).ids, ::testing::Each(::testing::AllOf(Ge(TokenSource::kFirstId), ::testing::Lt(256))));
    different.insert(turn(out, i).ids);
  }
  EXPECT_THAT(different, SizeIs(7));
}

TEST(RandomDataset, TextHasExactlyTheLengthAskedForToo) {
  for (const int64_t length : {1, 2, 17, 500}) {
    const Workload out = random_workload({.prompts = 20, .input_len = length, .prefix_len = 3}, TokenSource(tokenizer()), 1);
    EXPECT_EQ(out.inexact, 0);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_THAT(turn(out, i).ids, IsEmpty());
      EXPECT_EQ(static_cast<int64_t>(tokenizer().encode(turn(out, i).text, kPlain).size()), length + 3);
    }
  }
}

TEST(RandomDataset, AllPromptsBeginWithThePrefixAndThenDiffer) {
  const RandomSpec spec{.prompts = 5, .input_len = 10, .prefix_len = 30};
  const Workload ids = random_workload(spec, TokenSource(1000), 1), text = random_workload(spec, TokenSource(tokenizer()), 1);
  std::set<int32_t> next;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_THAT(turn(ids, i).ids, SizeIs(40));
    EXPECT_EQ(first(turn(ids, i).ids, 30), first(turn(ids, 0).ids, 30));
    EXPECT_EQ(first(tokenizer().encode(turn(text, i).text, kPlain), 30),
              first(tokenizer().encode(turn(text, 0).text, kPlain), 30));
    next.insert(turn(ids, i).ids[30]);
  }
  EXPECT_GT(next.size(), 1u);
}

TEST(RandomDataset, LengthsFillTheRangeAroundThoseAskedFor) {
  const Workload out =
      random_workload({.prompts = 2000, .input_len = 10, .output_len = 5, .range_ratio = 0.25}, TokenSource(256), 1);
  std::set<int64_t> inputs, outputs;
  for (size_t i = 0; i < 2000; ++i) {
    inputs.insert(turn(out, i).input_tokens);
    outputs.insert(turn(out, i).output_tokens);
  }
  EXPECT_THAT(inputs, ElementsAre(7, 8, 9, 10, 11, 12, 13)) << "floor of 7.5 to ceiling of 12.5";
  EXPECT_THAT(outputs, ElementsAre(3, 4, 5, 6, 7)) << "floor of 3.75 to ceiling of 6.25";
}

TEST(RandomDataset, FollowsTheSeed) {
  const RandomSpec spec{.prompts = 5, .input_len = 10, .range_ratio = 0.5};
  EXPECT_EQ(dump(random_workload(spec, TokenSource(256), 1)), dump(random_workload(spec, TokenSource(256), 1)));
  EXPECT_NE(dump(random_workload(spec, TokenSource(256), 1)), dump(random_workload(spec, TokenSource(256), 2)));
}

TEST(RandomDataset, APromptWithoutTokensIsRefused) {
  EXPECT_THAT(user_error([] { random_workload({.input_len = 1, .range_ratio = 0.5}, TokenSource(256), 1); }),
              HasSubstr("--random-input-len 1"));
  EXPECT_NO_THROW(random_workload({.prompts = 3, .input_len = 0, .prefix_len = 1}, TokenSource(256), 1));
  EXPECT_THAT(user_error([] { TokenSource(3); }), HasSubstr("--random-vocab-size"));
}

TEST(PrefixRepetition, EveryPrefixBeginsEquallyManyPrompts) {
  const PrefixRepetitionSpec spec{.prompts = 12, .prefixes = 3, .prefix_len = 20, .suffix_len = 5, .output_len = 6};
  const Workload out = prefix_repetition_workload(spec, TokenSource(256), 1);
  std::map<Ids, int> prefixes;
  std::set<Ids> prompts;
  for (size_t i = 0; i < 12; ++i) {
    ASSERT_THAT(turn(out, i).ids, SizeIs(25));
    EXPECT_EQ(turn(out, i).output_tokens, 6);
    ++prefixes[first(turn(out, i).ids, 20)];
    prompts.insert(turn(out, i).ids);
  }
  EXPECT_THAT(prompts, SizeIs(12));
  ASSERT_THAT(prefixes, SizeIs(3));
  for (const auto& [prefix, count] : prefixes) EXPECT_EQ(count, 4);
  PrefixRepetitionSpec in_order = spec;
  in_order.shuffle = false;
  EXPECT_NE(dump(prefix_repetition_workload(in_order, TokenSource(256), 1)), dump(out));
  EXPECT_THAT(user_error([] { prefix_repetition_workload({.prompts = 2, .prefixes = 3}, TokenSource(256), 1); }),
              HasSubstr("--num-prompts"));
}

json talk(const std::string& prompt, const std::string& answer) {
  return {
      {"conversations",
       {{{"from", "human"}, {"value", prompt}}, {{"from", "gpt"}, {"value", answer}}, {{"from", "human"}, {"value", "more"}}}}};
}
std::string words(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += " the";
  return out;
}
Workload sharegpt(const json& file, ShareGptSpec spec) {
  return sharegpt_workload(file.dump(), spec, tokenizer(), 1, "file.json");
}
int64_t tokens(const std::string& text) { return static_cast<int64_t>(tokenizer().encode(text).size()); }

TEST(ShareGpt, TakesTheFirstMessageAndTheLengthOfTheSecond) {
  const Workload out = sharegpt(json::array({talk("How are you today?", "Very well, thank you.")}), {.prompts = 1});
  EXPECT_EQ(turn(out, 0).text, "How are you today?");
  EXPECT_EQ(turn(out, 0).input_tokens, tokens("How are you today?"));
  EXPECT_EQ(turn(out, 0).output_tokens, tokens("Very well, thank you."));
}

TEST(ShareGpt, LeavesOutWhatIsTooShortOrTooLong) {
  const int special = static_cast<int>(tokens("")), most = 1024 - special;
  ASSERT_EQ(tokens(words(10)), 10 + special);
  const json file = json::array({talk(words(3 - special), words(10)),
                                 talk(words(4 - special), words(4 - special)),
                                 talk(words(10), words(3 - special)),
                                 talk(words(most), words(most)),
                                 talk(words(most + 1), words(10)),
                                 talk(words(most), words(most + 1)),
                                 {{"conversations", json::array({{{"value", words(10)}}})}},
                                 {{"other", 1}},
                                 7,
                                 talk(words(20), words(20))});
  const Workload out = sharegpt(file, {.prompts = 100, .shuffle = false, .oversample = false});
  std::vector<int64_t> inputs;
  for (size_t i = 0; i < out.conversations.size(); ++i) inputs.push_back(turn(out, i).input_tokens);
  EXPECT_THAT(inputs, ElementsAre(4, 1024, 20 + special));
  const Workload fixed = sharegpt(file, {.prompts = 100, .output_len = 2, .shuffle = false, .oversample = false});
  EXPECT_EQ(fixed.requests(), 5) << "a short answer in the file does not matter then";
  EXPECT_EQ(turn(fixed, 0).output_tokens, 2);
}

TEST(ShareGpt, TakesPromptsAgainWhereThereAreTooFew) {
  const json file = json::array({talk(words(10), words(10)), talk(words(11), words(10))});
  const Workload out = sharegpt(file, {.prompts = 5});
  ASSERT_EQ(out.requests(), 5);
  EXPECT_EQ(turn(out, 0).text, turn(out, 2).text);
  EXPECT_EQ(turn(out, 1).text, turn(out, 3).text);
  EXPECT_EQ(sharegpt(file, {.prompts = 5, .oversample = false}).requests(), 2);
  EXPECT_EQ(sharegpt(file, {.prompts = 1}).requests(), 1);
}

TEST(ShareGpt, AnotherKindOfFileIsRefused) {
  for (const char* text : {"", "{", "{}", "7", "[]", "[1]", R"([{"conversations": []}])"})
    EXPECT_THAT(user_error([&] { sharegpt_workload(text, {}, tokenizer(), 1, "file.json"); }), HasSubstr("file.json")) << text;
}

}  // namespace
}  // namespace weft::bench

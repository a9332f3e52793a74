#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;
using ::testing::ElementsAre;

/// Tokens 'a', 'b', ... have the ids 0, 1, ...
Bpe::Vocabulary letters(int count) {
  Bpe::Vocabulary vocabulary;
  for (int i = 0; i < count; ++i) vocabulary.tokens.emplace_back(std::string(1, static_cast<char>('a' + i)), i);
  return vocabulary;
}

std::vector<int32_t> encoded(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids{-7};  // What is there before stays.
  bpe.encode(word, ids);
  EXPECT_EQ(ids.front(), -7);
  ids.erase(ids.begin());
  return ids;
}

TEST(Bpe, TheLowestRankIsMergedFirst) {
  Bpe::Vocabulary vocabulary = letters(3);
  vocabulary.tokens.insert(vocabulary.tokens.end(), {{"bc", 3}, {"ab", 4}, {"abc", 5}});
  vocabulary.merges = {{1, 2, 3}, {0, 1, 4}};  // bc before ab; nothing makes abc
  const Bpe bpe(vocabulary);
  EXPECT_THAT(encoded(bpe, "abc"), ElementsAre(0, 3));
  EXPECT_THAT(encoded(bpe, "abab"), ElementsAre(4, 4));
  EXPECT_THAT(encoded(bpe, "ababc"), ElementsAre(4, 0, 3));
  EXPECT_THAT(encoded(bpe, ""), ElementsAre());
}

TEST(Bpe, OfEqualRankTheLeftmostIsMergedFirst) {
  Bpe::Vocabulary vocabulary = letters(1);
  vocabulary.tokens.emplace_back("aa", 1);
  vocabulary.merges = {{0, 0, 1}};
  const Bpe bpe(vocabulary);
  EXPECT_THAT(encoded(bpe, "aaa"), ElementsAre(1, 0));
  EXPECT_THAT(encoded(bpe, "aaaaa"), ElementsAre(1, 1, 0));
}

TEST(Bpe, WholeWordsComeBeforeMergesOnlyWhereAskedFor) {
  Bpe::Vocabulary vocabulary = letters(3);
  vocabulary.tokens.insert(vocabulary.tokens.end(), {{"abc", 3}});
  EXPECT_THAT(encoded(Bpe(vocabulary), "abc"), ElementsAre(0, 1, 2));
  vocabulary.whole_words = true;
  EXPECT_THAT(encoded(Bpe(vocabulary), "abc"), ElementsAre(3));
  EXPECT_THAT(encoded(Bpe(vocabulary), "abca"), ElementsAre(0, 1, 2, 0));
}

TEST(Bpe, UnknownBytesAreDroppedReplacedOrFused) {
  Bpe::Vocabulary vocabulary = letters(2);
  EXPECT_FALSE(Bpe(vocabulary).knows_all_bytes());
  EXPECT_THAT(encoded(Bpe(vocabulary), "axxbx"), ElementsAre(0, 1));
  vocabulary.unknown = 9;
  EXPECT_THAT(encoded(Bpe(vocabulary), "axxbx"), ElementsAre(0, 9, 9, 1, 9));
  vocabulary.fuse_unknown = true;
  EXPECT_THAT(encoded(Bpe(vocabulary), "axxbx"), ElementsAre(0, 9, 1, 9));
}

/// One merge at a time, by the definition.
std::vector<int32_t> by_definition(const Bpe::Vocabulary& vocabulary, std::string_view word) {
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(c - 'a');
  while (true) {
    size_t best_rank = vocabulary.merges.size(), best_at = 0;
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (vocabulary.merges[rank].left == ids[at] && vocabulary.merges[rank].right == ids[at + 1])
          best_rank = rank, best_at = at;
      }
    }
    if (best_rank == vocabulary.merges.size()) return ids;
    ids[best_at] = vocabulary.merges[best_rank].merged;
    ids.erase(ids.begin() + best_at + 1);
  }
}

TEST(Bpe, EqualsTheDefinitionForShortAndLongWords) {
  for_each_case([](Gen& gen) {
    const auto count = static_cast<int>(gen.in(1, 4));
    Bpe::Vocabulary vocabulary = letters(count);
    std::map<std::string, int32_t> ids;
    for (const auto& [bytes, id] : vocabulary.tokens) ids[bytes] = id;
    for (int64_t i = gen.in(0, 30); i > 0; --i) {
      const auto& [left, left_id] = vocabulary.tokens[gen.in(0, static_cast<int64_t>(vocabulary.tokens.size()) - 1)];
      const auto& [right, right_id] = vocabulary.tokens[gen.in(0, static_cast<int64_t>(vocabulary.tokens.size()) - 1)];
      bool known = false;
      for (const Bpe::Merge& merge : vocabulary.merges) known |= merge.left == left_id && merge.right == right_id;
      if (known) continue;
      const std::string merged = left + right;
      const auto [place, is_new] = ids.emplace(merged, static_cast<int32_t>(ids.size()));
      vocabulary.merges.push_back({left_id, right_id, place->second});
      if (is_new) vocabulary.tokens.emplace_back(merged, place->second);
    }
    const Bpe bpe(vocabulary);
    for (const int64_t length : {gen.in(0, 12), gen.in(40, 56), gen.in(100, 300)}) {
      std::string word;
      while (static_cast<int64_t>(word.size()) < length) {
        word += gen.chance(0.2) ? std::string(gen.in(1, 20), static_cast<char>('a' + gen.in(0, count - 1)))
                                : std::string(1, static_cast<char>('a' + gen.in(0, count - 1)));
      }
      EXPECT_EQ(encoded(bpe, word), by_definition(vocabulary, word)) << word;
    }
  });
}

}  // namespace
}  // namespace weft

#include "layout/rank_grid.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "support/prop.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The message of the refusal, or "" if the grid is accepted.
std::string refusal(const RankGrid::Spec& spec) {
  try {
    RankGrid grid(spec);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

/// The numbers after the last ':' or "allowed " of a message: its suggestions.
std::vector<int> suggestions(const std::string& message) {
  static const std::regex list(R"(([0-9]+(, [0-9]+)*)$)");
  std::smatch match;
  std::vector<int> out;
  if (!std::regex_search(message, match, list)) return out;
  const std::string numbers = match[1];
  static const std::regex number("[0-9]+");
  for (auto it = std::sregex_iterator(numbers.begin(), numbers.end(), number); it != std::sregex_iterator(); ++it)
    out.push_back(std::stoi(it->str()));
  return out;
}

/// By the rule itself: heads divide, and the ranks of a group hold the same KV head.
bool fits(int q_heads, int kv_heads, int tp, int dcp) {
  if (tp < 1 || dcp < 1 || q_heads % tp != 0 || (tp % kv_heads != 0 && kv_heads % tp != 0) || tp % dcp != 0) return false;
  if (dcp == 1) return true;
  if (tp < kv_heads) return false;
  for (int rank = 0; rank < tp; ++rank)
    if (rank * kv_heads / tp != rank / dcp * dcp * kv_heads / tp) return false;
  return true;
}

TEST(RankGrid, EveryCombinationIsAcceptedExactlyIfItFits) {
  for (const int q_heads : {1, 4, 6, 8, 12, 24, 32})
    for (const int kv_heads : {1, 2, 3, 4, 6, 8}) {
      if (q_heads % kv_heads != 0) continue;
      for (int tp = 1; tp <= 33; ++tp)
        for (int dcp = 1; dcp <= 33; ++dcp) {
          const std::string why = refusal({.tp = tp, .dcp = dcp, .q_heads = q_heads, .kv_heads = kv_heads});
          ASSERT_EQ(why.empty(), fits(q_heads, kv_heads, tp, dcp))
              << q_heads << "/" << kv_heads << " heads, tp " << tp << ", dcp " << dcp << ": " << why;
        }
    }
}

TEST(RankGrid, EverySuggestionIsItselfAccepted) {
  for (const int q_heads : {4, 6, 8, 24})
    for (const int kv_heads : {1, 2, 4, 6}) {
      if (q_heads % kv_heads != 0) continue;
      for (int tp = 1; tp <= 25; ++tp)
        for (int dcp = 1; dcp <= 9; ++dcp) {
          const RankGrid::Spec spec{.tp = tp, .dcp = dcp, .q_heads = q_heads, .kv_heads = kv_heads};
          const std::string message = refusal(spec);
          if (message.empty()) continue;
          ASSERT_THAT(suggestions(message), ::testing::Not(IsEmpty())) << message;
          for (const int value : suggestions(message)) {
            RankGrid::Spec mended = spec;
            if (message.find("--tensor-parallel-size must") == 0) {
              mended.tp = value;
              mended.dcp = 1;  // What W may be is the next question, answered for the mended tp.
            } else {
              mended.dcp = value;
            }
            ASSERT_EQ(refusal(mended), "") << "suggested by: " << message;
          }
        }
    }
}

TEST(RankGrid, SuggestedInterleaveSizesAreAccepted) {
  RankGrid::Spec spec{.tp = 2, .dcp = 2, .q_heads = 4, .kv_heads = 1, .interleave = 5, .block_tokens = 12};
  const std::string message = refusal(spec);
  EXPECT_THAT(message, HasSubstr("--block-size must be a multiple of --cp-kv-cache-interleave-size: block size 12"));
  EXPECT_THAT(suggestions(message), ElementsAre(1, 2, 3, 4, 6, 12));
  for (const int value : suggestions(message)) {
    spec.interleave = value;
    EXPECT_EQ(refusal(spec), "");
  }
}

TEST(RankGrid, RefusalsNameFlagsNumbersAndTheWayOut) {
  // As many KV heads as ranks, or more: there is no copy to replace by a shard.
  EXPECT_EQ(
      refusal({.tp = 4, .dcp = 2, .q_heads = 16, .kv_heads = 4}),
      "--decode-context-parallel-size must divide the copies of a KV head: dcp 2, tp 4, KV heads 4, so each KV head has 1 "
      "copy; allowed at this tp: 1");
  EXPECT_THAT(refusal({.tp = 4, .dcp = 2, .q_heads = 16, .kv_heads = 8}), HasSubstr("allowed at this tp: 1"));
  EXPECT_EQ(refusal({.tp = 8, .dcp = 2, .q_heads = 16, .kv_heads = 4}), "");
  EXPECT_EQ(
      refusal({.tp = 8, .dcp = 3, .q_heads = 16, .kv_heads = 2}),
      "--decode-context-parallel-size must divide the copies of a KV head: dcp 3, tp 8, KV heads 2, so each KV head has 4 "
      "copies; allowed at this tp: 1, 2, 4");
  EXPECT_EQ(
      refusal({.tp = 5, .q_heads = 12, .kv_heads = 4}),
      "--tensor-parallel-size must divide the query heads, and divide or be divided by the KV heads: tp 5, query heads 12, "
      "KV heads 4, allowed 1, 2, 4, 12");
}

TEST(RankGrid, AGroupNeverMixesKvHeads) {
  // Six copies of each of four heads: groups of four would put heads 0 and 1 into one group.
  EXPECT_THAT(refusal({.tp = 24, .dcp = 4, .q_heads = 24, .kv_heads = 4}), HasSubstr("allowed at this tp: 1, 2, 3, 6"));
  EXPECT_EQ(refusal({.tp = 24, .dcp = 6, .q_heads = 24, .kv_heads = 4}), "");
}

TEST(RankGrid, ValuesBelowOneAreRefused) {
  EXPECT_THAT(refusal({.tp = 0}), HasSubstr("--tensor-parallel-size must be at least 1: got 0"));
  EXPECT_THAT(refusal({.dcp = -2}), HasSubstr("--decode-context-parallel-size must be at least 1: got -2"));
  EXPECT_THAT(refusal({.interleave = 0}), HasSubstr("--cp-kv-cache-interleave-size must be at least 1: got 0"));
  EXPECT_THAT(refusal({.block_tokens = 0}), HasSubstr("--block-size must be at least 1: got 0"));
}

TEST(RankGrid, RanksOfAGroupHoldTheSameKvHeadAndEveryQueryHeadOnce) {
  for (const int q_heads : {8, 24, 48})
    for (const int kv_heads : {1, 2, 4, 8})
      for (const int tp : RankGrid::legal_tp(q_heads, kv_heads, 48))
        for (const int dcp : RankGrid::legal_dcp(q_heads, kv_heads, tp)) {
          const RankGrid grid({.tp = tp, .dcp = dcp, .q_heads = q_heads, .kv_heads = kv_heads});
          std::vector<int> q_owners(static_cast<size_t>(q_heads), 0), kv_owners(static_cast<size_t>(kv_heads), 0);
          for (int rank = 0; rank < tp; ++rank) {
            const Range q = grid.q_heads_of(rank), kv = grid.kv_heads_of(rank);
            ASSERT_EQ(q.size(), grid.rank_q_heads());
            ASSERT_EQ(kv.size(), grid.rank_kv_heads());
            for (int64_t head = q.begin; head < q.end; ++head) {
              ++q_owners.at(static_cast<size_t>(head));
              ASSERT_TRUE(kv.begin <= head * kv_heads / q_heads && head * kv_heads / q_heads < kv.end)
                  << "rank " << rank << " lacks the KV head of query head " << head;
            }
            for (int64_t head = kv.begin; head < kv.end; ++head) ++kv_owners.at(static_cast<size_t>(head));
            const int first = grid.group_of(rank) * dcp;
            ASSERT_EQ(first + grid.dcp_rank_of(rank), rank) << "a group is a run of ranks";
            ASSERT_EQ(kv, grid.kv_heads_of(first)) << "one KV head per group";
          }
          ASSERT_TRUE(std::all_of(q_owners.begin(), q_owners.end(), [](int n) { return n == 1; }));
          ASSERT_TRUE(std::all_of(kv_owners.begin(), kv_owners.end(), [&](int n) { return n == grid.kv_copies(); }));
          ASSERT_EQ(grid.groups() * dcp, tp);
          ASSERT_EQ(grid.group_q_heads(), grid.rank_q_heads() * dcp);
        }
}

TEST(RankGrid, EightRanksOverFourKvHeadsInPairs) {
  const RankGrid grid({.tp = 8, .dcp = 2, .q_heads = 32, .kv_heads = 4, .interleave = 4, .block_tokens = 16});
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(grid.kv_heads_of(rank), (Range{rank / 2, rank / 2 + 1}));
    EXPECT_EQ(grid.q_heads_of(rank), (Range{4 * rank, 4 * rank + 4}));
  }
  EXPECT_EQ(grid.shard(), (ShardLayout{.ranks = 2, .interleave = 4}));
}

TEST(RankGrid, LegalSizesAreListed) {
  EXPECT_THAT(RankGrid::legal_dcp(128, 1, 8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(RankGrid::legal_dcp(24, 1, 24), ElementsAre(1, 2, 3, 4, 6, 8, 12, 24));
  EXPECT_THAT(RankGrid::legal_dcp(32, 8, 4), ElementsAre(1));
  EXPECT_THAT(RankGrid::legal_dcp(32, 8, 3), IsEmpty());
  EXPECT_THAT(RankGrid::legal_tp(6, 3, 8), ElementsAre(1, 3, 6));
  EXPECT_THAT(RankGrid::legal_tp(8, 2, 4), ElementsAre(1, 2, 4));
}

}  // namespace
}  // namespace weft

#include "layout/even_cut.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

static_assert(EvenCut{.size = 10, .parts = 4}.part(0) == Range{0, 3});
static_assert(EvenCut{.size = 10, .parts = 4}.part(1) == Range{3, 6});
static_assert(EvenCut{.size = 10, .parts = 4}.part(2) == Range{6, 8});
static_assert(EvenCut{.size = 10, .parts = 4}.part(3) == Range{8, 10});
static_assert(EvenCut{.size = 10, .parts = 4}.padded() == 3);
static_assert(EvenCut{.size = 10, .parts = 4}.owner(5) == 1);

TEST(EvenCut, PartsFollowEachOtherAndDifferByOneAtMost) {
  for (int parts = 1; parts <= 24; ++parts)
    for (int64_t size = 0; size <= 100; ++size) {
      const EvenCut cut{.size = size, .parts = parts};
      int64_t at = 0, last = cut.part(0).size();
      for (int i = 0; i < parts; ++i) {
        const Range part = cut.part(i);
        ASSERT_EQ(part.begin, at) << size << " in " << parts;
        ASSERT_LE(part.size(), last) << "the first parts take one more";
        ASSERT_GE(part.size(), size / parts);
        ASSERT_LE(part.size(), cut.padded());
        for (int64_t item = part.begin; item < part.end; ++item) ASSERT_EQ(cut.owner(item), i) << item;
        at = part.end;
        last = part.size();
      }
      ASSERT_EQ(at, size);
      ASSERT_EQ(cut.padded(), cut.part(0).size()) << "no more padding than the largest part needs";
    }
}

TEST(EvenCut, MorePartsThanThingsLeavesEmptyParts) {
  const EvenCut cut{.size = 2, .parts = 5};
  EXPECT_EQ(cut.part(1), (Range{1, 2}));
  EXPECT_TRUE(cut.part(2).empty());
  EXPECT_EQ(cut.part(4), (Range{2, 2}));
}

TEST(EvenCut, LargeSizesAreExact) {
  const EvenCut cut{.size = (int64_t{1} << 40) + 1, .parts = 3};
  EXPECT_EQ(cut.part(2).end, cut.size);
  EXPECT_EQ(cut.owner(cut.size - 1), 2);
  EXPECT_EQ(cut.owner(0), 0);
}

}  // namespace
}  // namespace weft

#include "text/normalizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/prop.h"

namespace weft {
namespace {

using test::for_each_case;
using test::Gen;

TEST(Normalizer, ComposesAndOrders) {
  EXPECT_EQ(composed("plain"), "plain");
  EXPECT_EQ(composed("e\u0301"), "\u00e9");
  EXPECT_EQ(composed("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(composed("a\u0301\u0323"), "\u1ea1\u0301") << "the mark below comes first";
  EXPECT_EQ(composed("\u2126"), "\u03a9");
  EXPECT_EQ(composed("\u0958"), "\u0915\u093c") << "excluded from composition";
}

TEST(Normalizer, CharactersYoungerThanUnicode9StayAsTheyAre) {
  EXPECT_EQ(composed("a\u0301\u089a\u0323"), "\u00e1\u089a\u0323") << "U+089A is of Unicode 14, nothing moves past it";
}

TEST(Normalizer, LongRowsOfMarksAreOrderedLikeShortOnes) {
  // The same marks once in a row that is ordered here, and once already in order.
  for_each_case([](Gen& gen) {
    std::string below, over, mixed;
    for (int64_t i = gen.in(60, 200); i > 0; --i) {
      const bool is_below = gen.chance(0.5);
      const std::string mark = is_below ? gen.pick<std::string>({"\u0323", "\u0324", "\u0330"})
                                        : gen.pick<std::string>({"\u0300", "\u0302", "\u0344", "\u0308"});
      (is_below ? below : over) += mark;
      mixed += mark;
    }
    mixed += " end";
    below += over;
    below += " end";
    for (const std::string letter : {"", "x", "\u1ebf", "\u0915"})
      EXPECT_EQ(composed(letter + mixed), composed(letter + below));
  });
}

TEST(Normalizer, IsStable) {
  for_each_case([](Gen& gen) {
    std::string text;
    for (int64_t i = gen.in(0, 100); i > 0; --i) {
      text += gen.pick<std::string>({"a", "e", "\u00e9", "\u0301", "\u0323", "\u0f71", "\u0f72", "\u0f73", "\u1112", "\u1161",
                                     "\u11ab", "\u0344", "\u3099", "\u304b", "\u0b47", "\u0b3e", " ", "\U0001D15E", "\u089a"});
    }
    const std::string once = composed(text);
    EXPECT_EQ(composed(once), once);
  });
}

}  // namespace
}  // namespace weft

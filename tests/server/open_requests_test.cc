#include "server/open_requests.h"

#include <gmock/gmock.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(OpenRequests, AreAbortedByAnyOfTheirNamesWhileTheyAreOpen) {
  OpenRequests open;
  auto one = open.enter({"cmpl-1", "mine"}, "key", {7, 8});
  {
    const auto two = open.enter({"cmpl-2", "mine"}, "key", {9});
    EXPECT_THAT(open.abort("mine", "key", false), UnorderedElementsAre(7, 8, 9)) << "clients may use a name twice";
    EXPECT_TRUE(two->aborted);
  }
  EXPECT_TRUE(one->aborted);
  EXPECT_THAT(open.abort("cmpl-2", "key", false), IsEmpty());
  EXPECT_THAT(open.abort("cmpl-1", "key", false), ElementsAre(7, 8));
  EXPECT_THAT(open.abort("cmpl-", "key", true), IsEmpty());
  one.reset();
  EXPECT_THAT(open.abort("mine", "key", true), IsEmpty());
  EXPECT_EQ(open.size(), 0u);
}

TEST(OpenRequests, OfAnotherOwnerAreOutOfReach) {
  OpenRequests open;
  const auto request = open.enter({"a"}, "key", {1});
  EXPECT_THAT(open.abort("a", "other", false), IsEmpty());
  EXPECT_FALSE(request->aborted);
  EXPECT_THAT(open.abort("a", "other", true), ElementsAre(1));
  EXPECT_TRUE(request->aborted);
}

TEST(OpenRequests, AllAreAbortedOnce) {
  OpenRequests open;
  const auto a = open.enter({"a", "b"}, "x", {1}), c = open.enter({"c"}, "y", {2, 3});
  EXPECT_THAT(open.abort_all(), UnorderedElementsAre(1, 2, 3));
  EXPECT_TRUE(a->aborted && c->aborted);
}

}  // namespace
}  // namespace weft

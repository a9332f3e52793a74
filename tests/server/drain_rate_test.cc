#include "server/drain_rate.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

using namespace std::chrono_literals;

class DrainRateTest : public ::testing::Test {
 protected:
  /// `seconds` in steps of a tenth, `per_second` requests ending in each.
  void pass(double seconds, double per_second, bool busy = true) {
    for (int i = 0; i < static_cast<int>(seconds * 10); ++i) {
      now_ += 100ms;
      ended_ += per_second / 10;
      rate_.observe(now_, static_cast<int64_t>(ended_ + 1e-6), busy);
    }
  }
  DrainRate rate_;
  DrainRate::TimePoint now_{1h};
  double ended_ = 0;
};

TEST_F(DrainRateTest, IsTheTimeThatTheQueueTakesToEmpty) {
  pass(20, 2);
  EXPECT_EQ(rate_.seconds_for(1), 1);
  EXPECT_EQ(rate_.seconds_for(2), 1);
  EXPECT_EQ(rate_.seconds_for(3), 2);
  EXPECT_EQ(rate_.seconds_for(50), 25);
  EXPECT_EQ(rate_.seconds_for(0), 1) << "never at once";
  EXPECT_EQ(rate_.seconds_for(1e6), DrainRate::kMostSeconds);
}

TEST_F(DrainRateTest, FollowsTheLastHalfMinute) {
  pass(60, 10);
  EXPECT_EQ(rate_.seconds_for(50), 5);
  pass(15, 2);
  EXPECT_NEAR(rate_.seconds_for(50), 50 / 6.0, 1) << "half of the window is fast, half is slow";
  pass(30, 2);
  EXPECT_EQ(rate_.seconds_for(50), 25);
}

TEST_F(DrainRateTest, IdleTimeDoesNotCount) {
  pass(20, 4);
  pass(3600, 0, false);
  EXPECT_EQ(rate_.seconds_for(20), 5);
}

TEST_F(DrainRateTest, WhereNothingHasEndedItIsAsIfOneWereAboutTo) {
  EXPECT_EQ(rate_.seconds_for(100), 1) << "nothing is known";
  pass(8, 0);
  EXPECT_EQ(rate_.seconds_for(3), 24);
}

}  // namespace
}  // namespace weft

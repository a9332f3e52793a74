#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"
#include "support/prop.h"

// What every Communicator must do, as tests that a binary gives its implementations to.

namespace weft {
namespace {

using test::Gen;

/// An implementation under test.
struct Backend {
  const char* name;
  /// Runs body on every rank of a fresh group, each on a thread of its own, and returns when all are done; where a group is in
  /// several processes, the ranks of this one.
  void (*on_all_ranks)(int size, const std::function<void(Communicator&)>& body);
};

struct Case {
  Backend backend;
  int size;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.backend.name << c.size; }

class CommunicatorTest : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().size; }
  void on_all_ranks(const std::function<void(Communicator&)>& body) const { GetParam().backend.on_all_ranks(size(), body); }
};

/// A byte that tells where it was and where it goes.
uint8_t payload(int from, int to, int64_t index) { return static_cast<uint8_t>(17 * from + 5 * to + 3 * index + 1); }

template <typename T>
constexpr DType kDType = dtype_of<T>::value;

TEST_P(CommunicatorTest, KnowsItsPlace) {
  on_all_ranks([&](Communicator& comm) {
    EXPECT_EQ(comm.size(), size());
    const int32_t own = comm.rank();
    std::vector<int32_t> seen(static_cast<size_t>(size()), -1), expected;
    for (int rank = 0; rank < size(); ++rank) expected.push_back(rank);
    comm.all_gather(ConstView(&own, DType::i32, {1}), View(seen.data(), DType::i32, {size(), 1}));
    EXPECT_EQ(seen, expected);
  });
}

TEST_P(CommunicatorTest, AllGatherBringsEveryRanksBytesInRankOrder) {
  on_all_ranks([this](Communicator& comm) {
    for (const int64_t bytes : {0, 1, 7, 64, 4099}) {
      std::vector<uint8_t> in, out(static_cast<size_t>(size() * bytes), 0xee), expected;
      for (int64_t i = 0; i < bytes; ++i) in.push_back(payload(comm.rank(), 0, i));
      for (int rank = 0; rank < size(); ++rank) {
        for (int64_t i = 0; i < bytes; ++i) expected.push_back(payload(rank, 0, i));
      }
      comm.all_gather(ConstView(in.data(), DType::u8, {bytes}), View(out.data(), DType::u8, {size(), bytes}));
      EXPECT_EQ(out, expected) << bytes << " bytes";
    }
  });
}

TEST_P(CommunicatorTest, AllGatherMovesNansUnchanged) {
  on_all_ranks([this](Communicator& comm) {
    const uint32_t in = 0x7fa00000u + static_cast<uint32_t>(comm.rank());  // signalling NaNs with a message
    std::vector<uint32_t> out(static_cast<size_t>(size()));
    comm.all_gather(ConstView(&in, DType::f32, {1}), View(out.data(), DType::f32, {size(), 1}));
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(out[static_cast<size_t>(rank)], 0x7fa00000u + static_cast<uint32_t>(rank));
    }
  });
}

TEST_P(CommunicatorTest, AllToAllTakesSlicesToTheirRanks) {
  on_all_ranks([this](Communicator& comm) {
    for (const int64_t bytes : {0, 1, 8, 515}) {
      std::vector<uint8_t> in, out(static_cast<size_t>(size() * bytes), 0xee), expected;
      for (int peer = 0; peer < size(); ++peer) {
        for (int64_t i = 0; i < bytes; ++i) in.push_back(payload(comm.rank(), peer, i));
        for (int64_t i = 0; i < bytes; ++i) expected.push_back(payload(peer, comm.rank(), i));
      }
      comm.all_to_all(ConstView(in.data(), DType::u8, {size(), bytes}), View(out.data(), DType::u8, {size(), bytes}));
      EXPECT_EQ(out, expected) << bytes << " bytes";
    }
  });
}

/// What each rank adds: computed, so that every rank knows the values of all.
template <typename T>
std::vector<T> summand(uint64_t seed, int rank, int64_t count) {
  Gen gen(seed * 100 + static_cast<uint64_t>(rank));
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(T(static_cast<float>(gen.normal())));
  return values;
}

template <typename T>
void check_sums(Communicator& comm, uint64_t seed, int64_t count) {
  std::vector<T> sum = summand<T>(seed, comm.rank(), count);
  comm.all_reduce_sum(View(sum.data(), kDType<T>, {count}));

  std::vector<std::vector<T>> summands;
  for (int rank = 0; rank < comm.size(); ++rank) summands.push_back(summand<T>(seed, rank, count));
  for (size_t i = 0; i < sum.size(); ++i) {
    double exact = 0, magnitude = 0;
    float in_order = static_cast<float>(summands[0][i]);
    for (size_t rank = 0; rank < summands.size(); ++rank) {
      const auto value = static_cast<float>(summands[rank][i]);
      exact += value;
      magnitude += std::abs(double{value});
      if (rank > 0) in_order += value;
    }
    // Each of the additions rounds to 24 bits, bfloat16 then once to 8.
    const double bound = 0x1p-24 * comm.size() * magnitude + (sizeof(T) == 2 ? 0x1p-8 * std::abs(exact) : 0);
    ASSERT_NEAR(static_cast<float>(sum[i]), exact, bound) << "element " << i << " of " << count;
    // In rank order means: these very bits, so the same on all ranks and with every implementation.
    const T expected(in_order);
    ASSERT_EQ(std::memcmp(&sum[i], &expected, sizeof(T)), 0) << "element " << i << " of " << count;
  }
}

TEST_P(CommunicatorTest, SumsHaveTheSameBitsOnAllRanks) {
  on_all_ranks([](Communicator& comm) {
    for (const int64_t count : {0, 1, 2, 3, 7, 8, 15, 16, 17, 33, 255, 1000, 4096, 10007}) {
      check_sums<float>(comm, static_cast<uint64_t>(count), count);
      check_sums<bf16>(comm, static_cast<uint64_t>(count), count);
    }
  });
}

TEST_P(CommunicatorTest, CallsMayBeLong) {
  constexpr int64_t kCount = 150'001;  // no multiple of any buffer
  on_all_ranks([this](Communicator& comm) {
    check_sums<float>(comm, 1, kCount);
    const auto value = [](int from, int to, int64_t i) { return static_cast<int32_t>((from * 64 + to) * 1'000'000 + i); };
    std::vector<int32_t> in, out(static_cast<size_t>(size() * kCount));
    for (int peer = 0; peer < size(); ++peer)
      for (int64_t i = 0; i < kCount; ++i) in.push_back(value(comm.rank(), peer, i));
    comm.all_to_all(ConstView(in.data(), DType::i32, {size(), kCount}), View(out.data(), DType::i32, {size(), kCount}));
    for (int64_t i = 0; i < size() * kCount; ++i)
      ASSERT_EQ(out[static_cast<size_t>(i)], value(static_cast<int>(i / kCount), comm.rank(), i % kCount));
    comm.all_gather(ConstView(in.data(), DType::i32, {kCount}), View(out.data(), DType::i32, {size(), kCount}));
    for (int64_t i = 0; i < size() * kCount; ++i)
      ASSERT_EQ(out[static_cast<size_t>(i)], value(static_cast<int>(i / kCount), 0, i % kCount));
  });
}

TEST_P(CommunicatorTest, SumsOfBfloat16RoundOnce) {
  // 256 + 1 is a tie that goes back to 256: adding ones in bfloat16 would never leave it.
  on_all_ranks([this](Communicator& comm) {
    bf16 value(comm.rank() == 0 ? 256.0f : 1.0f);
    comm.all_reduce_sum(View(&value, DType::bf16, {1}));
    EXPECT_EQ(static_cast<float>(value), static_cast<float>(bf16(255.0f + static_cast<float>(size()))));
  });
}

TEST_P(CommunicatorTest, SumsKeepNansAndInfinitiesInTheirElements) {
  on_all_ranks([this](Communicator& comm) {
    const float inf = std::numeric_limits<float>::infinity();
    const bool last = comm.rank() == size() - 1;
    std::vector<float> values{1, last ? std::numeric_limits<float>::quiet_NaN() : 1, 1, last ? inf : 1, 1};
    comm.all_reduce_sum(View(values.data(), DType::f32, {5}));
    EXPECT_TRUE(std::isnan(values[1]));
    EXPECT_EQ(values[3], inf);
    for (const size_t i : {0, 2, 4}) EXPECT_EQ(values[i], static_cast<float>(size()));
  });
}

TEST_P(CommunicatorTest, CallsOfAllKindsFollowOneAnother) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    on_all_ranks([this, seed](Communicator& comm) {
      Gen gen(seed);  // the same on all ranks: so are the calls
      for (int call = 0; call < 40; ++call) {
        const int64_t count = gen.in(0, 300);
        switch (gen.in(0, 2)) {
          case 0:
            check_sums<float>(comm, static_cast<uint64_t>(call), count);
            break;
          case 1:
            check_sums<bf16>(comm, static_cast<uint64_t>(call), count);
            break;
          case 2: {
            std::vector<int32_t> in, out(static_cast<size_t>(size() * count));
            for (int64_t i = 0; i < size() * count; ++i) in.push_back(comm.rank() * 100000 + static_cast<int32_t>(i));
            comm.all_to_all(ConstView(in.data(), DType::i32, {size(), count}), View(out.data(), DType::i32, {size(), count}));
            for (int64_t i = 0; i < size() * count; ++i) {
              ASSERT_EQ(out[static_cast<size_t>(i)], i / count * 100000 + comm.rank() * count + i % count);
            }
            break;
          }
        }
      }
    });
  }
}

void expect_dead(Communicator& comm) {
  const int size = comm.size();
  std::vector<float> in(static_cast<size_t>(size)), out(static_cast<size_t>(size));
  const View whole(in.data(), DType::f32, {size, 1}), part(in.data(), DType::f32, {1}), to(out.data(), DType::f32, {size, 1});
  EXPECT_THROW(comm.all_reduce_sum(whole), SystemError);
  EXPECT_THROW(comm.all_gather(part, to), SystemError);
  EXPECT_THROW(comm.all_to_all(whole, to), SystemError);
  EXPECT_THROW(comm.all_reduce_sum(View(in.data(), DType::f32, {0})), SystemError);
}

TEST_P(CommunicatorTest, AbortWakesRanksThatWait) {
  on_all_ranks([this](Communicator& comm) {
    if (comm.rank() == size() - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      comm.abort();
    }
    expect_dead(comm);
  });
}

TEST_P(CommunicatorTest, AbortStopsRanksThatHaveNotEnteredYet) {
  on_all_ranks([](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.abort();
      comm.abort();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    expect_dead(comm);
  });
}

TEST_P(CommunicatorTest, AbortComesAfterTheCallsBeforeIt) {
  on_all_ranks([this](Communicator& comm) {
    float value = 1;
    comm.all_reduce_sum(View(&value, DType::f32, {1}));
    EXPECT_EQ(value, static_cast<float>(size()));
    if (comm.rank() == 0) comm.abort();
    expect_dead(comm);
  });
}

}  // namespace
}  // namespace weft

#pragma once

#include "base/tensor.h"

namespace weft {

/// Collectives of one rank, ordered with the rank's operators. Every rank of the group makes the same calls with the same
/// sizes, in the same order. Views are contiguous. In a group of one, `in` and `out` may be the same storage.
///
/// Errors: throws SystemError from every call once any rank of the group has called abort(); the group is dead afterwards.
/// Thread: the rank's own, except abort(), which any thread may call.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// out: [size, in...], rank-major, moved as bytes. `in` may be slice rank() of `out`.
  virtual void all_gather(ConstView in, View out) = 0;
  /// in, out: [size, ...]. Slice q of `in` goes to rank q, which finds it in slice rank() of its `out`. Moved as bytes.
  virtual void all_to_all(ConstView in, View out) = 0;
  /// Sums float32 or bfloat16 over the ranks, in rank order and in float32, rounded once: the same bits on every rank.
  virtual void all_reduce_sum(View data) = 0;
  /// Wakes every rank that waits in a collective. Idempotent.
  virtual void abort() noexcept = 0;
};

}  // namespace weft

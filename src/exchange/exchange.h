#pragma once

#include "base/tensor.h"
#include "exchange/exchange_counters.h"
#include "ops/ops.h"

namespace weft {

/// The largest sizes a step may use: exchange buffers are taken at start, sized from these.
struct ExchangeLimits {
  DType dtype = DType::bf16;    ///< compute dtype; queries and partials cross in it
  int64_t query_rows = 0;       ///< rows of one gather_queries / exchange_partials
  int heads = 0;                ///< query heads of one rank
  int64_t query_dim = 0;        ///< elements of one query head: D, or latent + rope
  int64_t partial_dim = 0;      ///< elements of one partial head: D, or latent
  int64_t context_rows = 0;     ///< rows of one rank in one gather_context
  int64_t context_row_dim = 0;  ///< elements of a context row: K and V, or latent + rope

  /// Bytes that an exchange of `ranks` ranks takes for these limits on each rank. 0 when ranks is 1.
  size_t bytes(int ranks) const;
};

/// Group operations of decode context parallelism and tensor parallelism, each one kernel where the hardware allows it. With
/// a DCP group of one rank the first three are never called, and nothing exists for them.
///
/// Every rank of the group makes the same calls with the same sizes. Views that are returned live in the exchange's own
/// buffers and stay valid until the next call of the same method. Errors: as Communicator.
/// Thread: the rank's own.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual int dcp_rank() const = 0;
  virtual int dcp_size() const = 0;
  virtual int tp_rank() const = 0;
  virtual int tp_size() const = 0;

  /// q [T, h, D] of this rank -> [W, T, h, D]: the queries of all heads of the group.
  virtual ConstView gather_queries(ConstView q) = 0;

  /// Where this rank writes its partials for the group's heads before exchange_partials.
  struct PartialBuffer {
    View out;  ///< [W, T, h, Dv] compute dtype
    View lse;  ///< [W, T, h] float32
  };
  virtual PartialBuffer partial_buffer(int64_t rows, int heads, int64_t dim) = 0;
  /// Sends each rank its heads' partials from partial_buffer (same sizes as that call) and merges the W partials of this
  /// rank's own heads, in rank order: out [T, h, Dv] compute dtype, lse [T, h] float32 (may be empty).
  virtual void exchange_partials(View out, View lse) = 0;

  /// Where this rank writes its context rows before gather_context: [rows, dim], compute dtype or the cache's.
  virtual View context_buffer(int64_t rows, int64_t dim, DType dtype) = 0;
  /// The rows of all ranks, rank-major: [W, rows, dim].
  virtual ConstView gather_context() = 0;

  /// Tensor-parallel sum of partial [T, H], added to residual [T, H]; then out = rms_norm(residual). out may be partial.
  virtual void all_reduce_norm(View partial, View residual, const float* weight, float eps, View out) = 0;
  /// Tensor-parallel sum in place.
  virtual void all_reduce(View data) = 0;
  /// Slices of the last dimension, equal on all ranks up to padding: [R, n] of each tp rank -> [tp, R, n].
  virtual void all_gather_tp(ConstView in, View out) = 0;
  /// Wakes every rank that waits. Any thread.
  virtual void abort() noexcept = 0;

  /// What this rank has moved so far. Any thread.
  const ExchangeCounters& counters() const { return counters_; }

 protected:
  ExchangeCounters counters_;
};

}  // namespace weft

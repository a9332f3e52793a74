#pragma once

#include <vector>

#include "comm/communicator.h"
#include "exchange/exchange.h"

namespace weft {

/// The exchange written with collectives and operators: for ranks that are threads or processes on CPUs, and for GPUs without
/// peer memory.
///
/// A partial crosses as one row [out | lse]: the lse's float32 bits lie behind the elements of its head, which are padded to a
/// multiple of four bytes. So a single all_to_all carries both, and merge reads the W partials where they arrived.
class CollectiveExchange final : public Exchange {
 public:
  /// Takes ExchangeLimits::bytes(dcp.size()) from `ops`. All three outlive the exchange. Group dcp of tp rank k is number
  /// k / W, and its rank there is k mod W.
  CollectiveExchange(Communicator& dcp, Communicator& tp, Ops& ops, const ExchangeLimits& limits);

  int dcp_rank() const override { return dcp_.rank(); }
  int dcp_size() const override { return dcp_.size(); }
  int tp_rank() const override { return tp_.rank(); }
  int tp_size() const override { return tp_.size(); }

  ConstView gather_queries(ConstView q) override;
  PartialBuffer partial_buffer(int64_t rows, int heads, int64_t dim) override;
  void exchange_partials(View out, View lse) override;
  View context_buffer(int64_t rows, int64_t dim, DType dtype) override;
  ConstView gather_context() override;
  void all_reduce_norm(View partial, View residual, const float* weight, float eps, View out) override;
  void all_reduce(View data) override;
  void all_gather_tp(ConstView in, View out) override;
  void abort() noexcept override;

  /// What the buffers take.
  size_t allocated_bytes() const;

 private:
  Communicator& dcp_;
  Communicator& tp_;
  Ops& ops_;
  const DType dtype_;

  Buffer queries_;                            ///< [W, T, h, D]
  Buffer partials_sent_, partials_received_;  ///< [W, T, h, row]
  Buffer context_sent_, context_received_;    ///< [rows, dim], [W, rows, dim]
  std::vector<Partial> partials_;             ///< [W] views of partials_received_

  int64_t rows_ = 0, heads_ = 0, dim_ = 0;  ///< of the last partial_buffer
  ConstView context_;                       ///< the last context_buffer
};

}  // namespace weft

#pragma once

#include "exchange/exchange.h"

namespace weft {

/// How a head's partial lies in a buffer: [out | lse], the lse aligned to its own four bytes.
struct PartialRow {
  DType dtype = DType::bf16;
  int64_t dim = 0;  ///< elements of out

  /// Elements of the compute dtype that one lse takes the place of.
  int64_t lse_elements() const { return static_cast<int64_t>(sizeof(float) / size_of(dtype)); }
  /// Where the lse begins, in floats.
  int64_t lse_offset() const { return (dim + lse_elements() - 1) / lse_elements(); }
  /// From one row to the next, in floats and in elements.
  int64_t floats() const { return lse_offset() + 1; }
  int64_t elements() const { return floats() * lse_elements(); }
  size_t bytes() const { return static_cast<size_t>(floats()) * sizeof(float); }
};

/// Bytes of the buffers of an exchange of `ranks` ranks. All 0 where there is nothing to exchange.
struct ExchangeBufferSizes {
  size_t queries = 0, partials = 0, context_sent = 0, context_received = 0;

  ExchangeBufferSizes(const ExchangeLimits& limits, int ranks) {
    if (ranks == 1) return;
    const size_t element = size_of(limits.dtype), w = static_cast<size_t>(ranks);
    const size_t heads = w * static_cast<size_t>(limits.query_rows) * static_cast<size_t>(limits.heads);
    queries = heads * static_cast<size_t>(limits.query_dim) * element;
    partials = heads * PartialRow{limits.dtype, limits.partial_dim}.bytes();
    context_sent = static_cast<size_t>(limits.context_rows) * static_cast<size_t>(limits.context_row_dim) * element;
    context_received = w * context_sent;
  }
};

}  // namespace weft

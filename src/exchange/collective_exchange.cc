#include "exchange/collective_exchange.h"

#include <chrono>

#include "exchange/buffer_sizes.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

int64_t nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

/// Counts one call of an operation, from here to the end of its scope.
class Counting {
 public:
  Counting(ExchangeCounters::Counts& counts, size_t bytes) : counts_(counts), bytes_(bytes) {}
  ~Counting() {
    counts_.calls.add();
    counts_.bytes.add(static_cast<int64_t>(bytes_));
    counts_.nanoseconds.add(nanoseconds_since(start_));
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  ExchangeCounters::Counts& counts_;
  const size_t bytes_;
  const Clock::time_point start_ = Clock::now();
};

void check_fits(const char* what, size_t bytes, const Buffer& buffer) {
  WEFT_CHECK_LE(bytes, buffer.bytes()) << what << " beyond the limits of the exchange";
}

}  // namespace

CollectiveExchange::CollectiveExchange(Communicator& dcp, Communicator& tp, Ops& ops, const ExchangeLimits& limits)
    : dcp_(dcp), tp_(tp), ops_(ops), dtype_(limits.dtype) {
  WEFT_CHECK(dtype_ == DType::f32 || dtype_ == DType::bf16) << to_string(dtype_);
  WEFT_CHECK_EQ(tp.size() % dcp.size(), 0);
  WEFT_CHECK_EQ(tp.rank() % dcp.size(), dcp.rank()) << "rank " << tp.rank() << " is in the wrong place of its group";
  if (dcp.size() == 1) return;
  const ExchangeBufferSizes sizes(limits, dcp.size());
  queries_ = ops.allocate(sizes.queries);
  partials_sent_ = ops.allocate(sizes.partials);
  partials_received_ = ops.allocate(sizes.partials);
  context_sent_ = ops.allocate(sizes.context_sent);
  context_received_ = ops.allocate(sizes.context_received);
  partials_.resize(static_cast<size_t>(dcp.size()));
}

ConstView CollectiveExchange::gather_queries(ConstView q) {
  WEFT_CHECK_EQ(q.dims(), 3);
  WEFT_CHECK(q.dtype() == dtype_) << to_string(q.dtype());
  const View all(queries_.data(), dtype_, {dcp_.size(), q.size(0), q.size(1), q.size(2)});
  check_fits("queries", all.bytes(), queries_);
  if (!q.is_contiguous()) {
    const View own = all.at(dcp_.rank());
    ops_.copy(q, own);
    q = own;
  }
  const Counting counting(counters_.of[ExchangeCounters::gather_queries], all.bytes() - q.bytes());
  dcp_.all_gather(q, all);
  return all;
}

Exchange::PartialBuffer CollectiveExchange::partial_buffer(int64_t rows, int heads, int64_t dim) {
  const PartialRow row{dtype_, dim};
  const int64_t w = dcp_.size(), floats = row.floats(), elements = row.elements();
  check_fits("partials", static_cast<size_t>(w * rows * heads) * row.bytes(), partials_sent_);
  rows_ = rows;
  heads_ = heads;
  dim_ = dim;
  auto* lse = reinterpret_cast<float*>(partials_sent_.data()) + row.lse_offset();
  return {.out = View(partials_sent_.data(), dtype_, {w, rows, heads, dim},
                      {rows * heads * elements, heads * elements, elements, 1}),
          .lse = View(lse, DType::f32, {w, rows, heads}, {rows * heads * floats, heads * floats, floats})};
}

void CollectiveExchange::exchange_partials(View out, View lse) {
  const PartialRow row{dtype_, dim_};
  const int64_t w = dcp_.size(), floats = row.floats(), elements = row.elements();
  const auto slice_bytes = static_cast<int64_t>(row.bytes()) * rows_ * heads_;
  {
    const Counting counting(counters_.of[ExchangeCounters::exchange_partials], static_cast<size_t>((w - 1) * slice_bytes));
    dcp_.all_to_all(ConstView(partials_sent_.data(), DType::u8, {w, slice_bytes}),
                    View(partials_received_.data(), DType::u8, {w, slice_bytes}));
  }
  for (int64_t peer = 0; peer < w; ++peer) {
    const std::byte* slice = partials_received_.data() + peer * slice_bytes;
    const auto* slice_lse = reinterpret_cast<const float*>(slice) + row.lse_offset();
    partials_[static_cast<size_t>(peer)] = {
        .out = ConstView(slice, dtype_, {rows_, heads_, dim_}, {heads_ * elements, elements, 1}),
        .lse = ConstView(slice_lse, DType::f32, {rows_, heads_}, {heads_ * floats, floats})};
  }
  const Clock::time_point start = Clock::now();
  ops_.merge(partials_, out, lse);
  counters_.merge_nanoseconds.add(nanoseconds_since(start));
}

View CollectiveExchange::context_buffer(int64_t rows, int64_t dim, DType dtype) {
  const View context(context_sent_.data(), dtype, {rows, dim});
  check_fits("context rows", context.bytes(), context_sent_);
  context_ = context;
  return context;
}

ConstView CollectiveExchange::gather_context() {
  const View all(context_received_.data(), context_.dtype(), {dcp_.size(), context_.size(0), context_.size(1)});
  const Counting counting(counters_.of[ExchangeCounters::gather_context], all.bytes() - context_.bytes());
  dcp_.all_gather(context_, all);
  return all;
}

void CollectiveExchange::all_reduce_norm(View partial, View residual, const float* weight, float eps, View out) {
  all_reduce(partial);
  ops_.add_rms_norm(partial, residual, weight, eps, out);
}

void CollectiveExchange::all_reduce(View data) {
  if (tp_.size() == 1) return tp_.all_reduce_sum(data);
  const auto n = static_cast<size_t>(tp_.size());
  const Counting counting(counters_.of[ExchangeCounters::all_reduce], 2 * (n - 1) * data.bytes() / n);
  tp_.all_reduce_sum(data);
}

void CollectiveExchange::all_gather_tp(ConstView in, View out) {
  if (tp_.size() == 1) return tp_.all_gather(in, out);
  const Counting counting(counters_.of[ExchangeCounters::gather_logits], out.bytes() - in.bytes());
  tp_.all_gather(in, out);
}

void CollectiveExchange::abort() noexcept {
  dcp_.abort();
  tp_.abort();
}

size_t CollectiveExchange::allocated_bytes() const {
  return queries_.bytes() + partials_sent_.bytes() + partials_received_.bytes() + context_sent_.bytes() +
         context_received_.bytes();
}

}  // namespace weft

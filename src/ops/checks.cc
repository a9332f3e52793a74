#include "ops/checks.h"

namespace weft::checks {
namespace {

bool is_compute(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

bool rows_are_contiguous(const ConstView& view) {
  const int last = view.dims() - 1;
  return view.stride(last) == 1 || view.size(last) <= 1 || view.count() == 0;
}

/// Neighbours of the last dimension are neighbours in memory, the elements are of a compute dtype.
void activation(const ConstView& view, int dims) {
  WEFT_CHECK_EQ(view.dims(), dims);
  WEFT_CHECK(is_compute(view.dtype())) << to_string(view.dtype());
  WEFT_CHECK(rows_are_contiguous(view)) << "stride of the last dimension " << view.stride(dims - 1);
}

void same_sizes(const ConstView& a, const ConstView& b) {
  WEFT_CHECK_EQ(a.dims(), b.dims());
  for (int d = 0; d < a.dims(); ++d) WEFT_CHECK_EQ(a.size(d), b.size(d)) << "dimension " << d;
}

/// The types that a product of x with w may have.
void product_types(const Matrix& w, const ConstView& x, const ConstView& out) {
  WEFT_CHECK(x.dtype() == w.dtype()) << to_string(x.dtype()) << " rows, matrix of " << to_string(w.dtype());
  WEFT_CHECK(out.dtype() == x.dtype() || out.dtype() == DType::f32) << to_string(out.dtype());
}

void heads(const char* name, const ConstView& view, int64_t rows, int64_t count, int64_t dim, DType dtype) {
  WEFT_CHECK(view.dims() == 3 && view.size(0) == rows && view.size(1) == count && view.size(2) == dim && view.stride(2) == 1)
      << name << " is [" << view.size(0) << ", " << view.size(1) << ", " << view.size(2) << "], not [" << rows << ", " << count
      << ", " << dim << "] with adjacent elements";
  WEFT_CHECK(view.dtype() == dtype) << name << " is " << to_string(view.dtype());
}

void gathered(const View& out, int64_t rows, const KvView& kv, int64_t dim, int64_t row_bytes) {
  WEFT_CHECK_EQ(out.size(0), rows);
  if (out.dtype() == DType::u8) {
    WEFT_CHECK_EQ(out.dims(), 2);
    WEFT_CHECK_EQ(out.size(1), row_bytes);
    WEFT_CHECK_EQ(out.stride(1), 1);
  } else {
    WEFT_CHECK(is_compute(out.dtype())) << to_string(out.dtype());
    WEFT_CHECK_EQ(out.dims(), 3);
    WEFT_CHECK_EQ(out.size(1), kv.kv_heads);
    WEFT_CHECK_EQ(out.size(2), dim);
    WEFT_CHECK_EQ(out.stride(2), 1);
  }
}

}  // namespace

void matrix(const ConstView& view, DType dtype, int64_t rows, int64_t columns) {
  WEFT_CHECK(view.dtype() == dtype) << to_string(view.dtype()) << " instead of " << to_string(dtype);
  WEFT_CHECK_EQ(view.dims(), 2);
  WEFT_CHECK_EQ(view.size(0), rows);
  WEFT_CHECK_EQ(view.size(1), columns);
  WEFT_CHECK(rows_are_contiguous(view)) << "stride of the last dimension " << view.stride(1);
}

void copy(const ConstView& in, const View& out) {
  WEFT_CHECK(in.dtype() == out.dtype() || (is_compute(in.dtype()) && is_compute(out.dtype())))
      << to_string(in.dtype()) << " to " << to_string(out.dtype());
  same_sizes(in, out);
}

void linear(const Matrix& w, const ConstView& x, const View& out) {
  product_types(w, x, out);
  matrix(x, w.dtype(), x.size(0), w.in());
  matrix(out, out.dtype(), x.size(0), w.out());
}

void head_linear(std::span<const std::unique_ptr<Matrix>> w, const ConstView& x, const View& out) {
  activation(x, 3);
  activation(out, 3);
  WEFT_CHECK_EQ(x.size(0), out.size(0));
  WEFT_CHECK_EQ(x.size(1), static_cast<int64_t>(w.size()));
  WEFT_CHECK_EQ(out.size(1), static_cast<int64_t>(w.size()));
  for (const std::unique_ptr<Matrix>& head : w) {
    product_types(*head, x, out);
    WEFT_CHECK_EQ(x.size(2), head->in());
    WEFT_CHECK_EQ(out.size(2), head->out());
  }
}

void expert_linear(std::span<const std::unique_ptr<Matrix>> w, const ConstView& x, bool gather, const View& out) {
  activation(x, 2);
  activation(out, 2);
  WEFT_CHECK(gather || x.size(0) == out.size(0)) << x.size(0) << " rows of x, " << out.size(0) << " grouped rows";
  for (const std::unique_ptr<Matrix>& expert : w) {
    product_types(*expert, x, out);
    WEFT_CHECK_EQ(x.size(1), expert->in());
    WEFT_CHECK_EQ(out.size(1), expert->out());
  }
}

void embed(const ConstView& table, const View& out) {
  activation(out, 2);
  activation(table, 2);
  WEFT_CHECK_EQ(table.size(1), out.size(1));
}

void rms_norm(const ConstView& x, const View& out) {
  WEFT_CHECK(x.dims() == 2 || x.dims() == 3) << x.dims() << " dimensions";
  activation(x, x.dims());
  activation(out, x.dims());
  WEFT_CHECK(x.dtype() == out.dtype()) << to_string(x.dtype()) << " to " << to_string(out.dtype());
  same_sizes(x, out);
}

void add_rms_norm(const ConstView& delta, const View& residual, const View& out) {
  activation(residual, 2);
  matrix(delta, residual.dtype(), residual.size(0), residual.size(1));
  matrix(out, residual.dtype(), residual.size(0), residual.size(1));
}

void add(const ConstView& y, const View& x) {
  activation(x, 2);
  matrix(y, x.dtype(), x.size(0), x.size(1));
}

void silu_mul(const ConstView& gate_up, const View& out) {
  activation(out, 2);
  matrix(gate_up, out.dtype(), out.size(0), 2 * out.size(1));
}

void route(const ConstView& logits, const Routing& routing, const View& experts, const View& weights) {
  const int64_t rows = logits.size(0), count = logits.size(1);
  matrix(logits, DType::f32, rows, count);
  matrix(experts, DType::i32, rows, routing.top_k);
  matrix(weights, DType::f32, rows, routing.top_k);
  WEFT_CHECK_LE(count, int64_t{Routing::kMaxExperts});
  WEFT_CHECK(routing.top_k >= 1 && routing.top_k <= count) << "top_k " << routing.top_k << " of " << count;
  WEFT_CHECK(routing.n_group >= 1 && count % routing.n_group == 0) << routing.n_group << " groups of " << count << " experts";
  WEFT_CHECK(routing.topk_group >= 1 && routing.topk_group <= routing.n_group) << "topk_group " << routing.topk_group;
}

void combine_experts(const ConstView& y, const ConstView& weights, const ConstView& shared, const View& out) {
  activation(out, 2);
  matrix(weights, DType::f32, out.size(0), weights.size(1));
  matrix(y, out.dtype(), out.size(0) * weights.size(1), out.size(1));
  if (!shared.empty()) matrix(shared, out.dtype(), out.size(0), out.size(1));
}

void rope_table(std::span<const double> inv_freq, const View& cos, const View& sin) {
  const auto pairs = static_cast<int64_t>(inv_freq.size());
  for (const View* table : {&cos, &sin}) {
    WEFT_CHECK(table->dtype() == DType::f32) << to_string(table->dtype());
    WEFT_CHECK_EQ(table->size(0), cos.size(0));
    WEFT_CHECK_EQ(table->size(1), pairs);
  }
}

void rope_append(const RopeAppend& args) {
  const int64_t rows = args.q.size(0);
  const DType dtype = args.q.dtype();
  WEFT_CHECK(is_compute(dtype)) << to_string(dtype);
  WEFT_CHECK_EQ(args.rotary % 2, 0);
  WEFT_CHECK_LE(args.rotary, args.q.size(2));
  for (const ConstView* table : {&args.cos, &args.sin}) {
    WEFT_CHECK(table->dtype() == DType::f32) << to_string(table->dtype());
    WEFT_CHECK_EQ(table->size(0), rows);
    WEFT_CHECK_EQ(table->size(1), args.rotary / 2);
    WEFT_CHECK_EQ(table->stride(1), 1);
  }
  const KvView& kv = args.kv;
  WEFT_CHECK(kv.format == KvFormat::elements || (kv.is_latent() && kv.v_dim % kLatentScaleGroup == 0))
      << "fp8_ds_mla rows of " << kv.v_dim << " values";
  WEFT_CHECK(!kv.is_latent() || kv.scales.k == kv.scales.v) << kv.scales.k << " and " << kv.scales.v << " for one row";
  const int64_t k_dim = kv.is_latent() ? kv.k_dim - kv.v_dim : kv.k_dim;
  WEFT_CHECK_LE(args.rotary, k_dim);
  heads("q", args.q, rows, args.q.size(1), args.q.size(2), dtype);
  heads("q_out", args.q_out, rows, args.q.size(1), args.q.size(2), dtype);
  heads("k", args.k, rows, kv.kv_heads, k_dim, dtype);
  heads("k_out", args.k_out, rows, kv.kv_heads, k_dim, dtype);
  heads(kv.is_latent() ? "latent" : "v", kv.is_latent() ? args.latent : args.v, rows, kv.kv_heads, kv.v_dim, dtype);
}

void gather_rows(const KvView& kv, const View& k, const View& v) {
  gathered(k, k.size(0), kv, kv.k_dim, kv.k_row_bytes());
  if (!v.empty()) gathered(v, k.size(0), kv, kv.v_dim, kv.v_row_bytes());
}

void attend(const Attention& args) {
  const ConstView& q = args.q;
  WEFT_CHECK_EQ(q.dims(), 4);
  WEFT_CHECK_EQ(args.out.dims(), 4);
  WEFT_CHECK_EQ(args.lse.dims(), 3);
  for (int d = 0; d < 3; ++d) {
    WEFT_CHECK_EQ(args.out.size(d), q.size(d)) << "out, dimension " << d;
    WEFT_CHECK_EQ(args.lse.size(d), q.size(d)) << "lse, dimension " << d;
  }
  WEFT_CHECK(is_compute(q.dtype())) << to_string(q.dtype());
  WEFT_CHECK(args.out.dtype() == q.dtype()) << "out is " << to_string(args.out.dtype());
  WEFT_CHECK(args.lse.dtype() == DType::f32) << "lse is " << to_string(args.lse.dtype());
  const bool paged = args.paged.kv.k != nullptr;
  WEFT_CHECK(paged != !args.rows.k.empty()) << "exactly one source of keys";
  const int64_t dk = paged ? args.paged.kv.k_dim : args.rows.k.size(2);
  const int64_t dv = paged ? args.paged.kv.v_dim : args.rows.v.size(2);
  const DType dtype = paged ? args.paged.kv.dtype : args.rows.k.dtype();
  WEFT_CHECK_EQ(q.size(3), dk);
  WEFT_CHECK_EQ(args.out.size(3), dv);
  WEFT_CHECK(is_compute(dtype) || dtype == DType::f8_e4m3) << "keys are " << to_string(dtype);
  if (paged) {
    WEFT_CHECK_EQ(args.segments, 1);
    const KvView& kv = args.paged.kv;
    WEFT_CHECK(kv.format == KvFormat::elements || (kv.is_latent() && dv % kLatentScaleGroup == 0 && dtype == DType::f8_e4m3))
        << "fp8_ds_mla rows of " << dv << " values";
  } else {
    WEFT_CHECK(args.rows.v.dtype() == dtype) << "values are " << to_string(args.rows.v.dtype());
    WEFT_CHECK_EQ(args.rows.v.size(1), args.rows.k.size(1));
  }
  WEFT_CHECK_EQ(q.size(0) * q.size(2) % args.kv_heads(), 0) << "query heads per KV head";
}

void merge(std::span<const Partial> partials, const View& out, const View& lse) {
  WEFT_CHECK_EQ(out.dims(), 3);
  WEFT_CHECK_EQ(out.stride(2), 1);
  WEFT_CHECK(is_compute(out.dtype())) << to_string(out.dtype());
  WEFT_CHECK(lse.empty() || (lse.size(0) == out.size(0) && lse.size(1) == out.size(1))) << "sizes of lse";
  for (const Partial& partial : partials) {
    WEFT_CHECK(partial.out.dtype() == out.dtype()) << to_string(partial.out.dtype());
    WEFT_CHECK_EQ(partial.out.stride(2), 1);
    for (int d = 0; d < 3; ++d) WEFT_CHECK_EQ(partial.out.size(d), out.size(d)) << "dimension " << d;
    for (int d = 0; d < 2; ++d) WEFT_CHECK_EQ(partial.lse.size(d), out.size(d)) << "dimension " << d;
  }
}

void logits(const SampledLogits& in, const View& workspace, size_t workspace_bytes) {
  matrix(in.logits, DType::f32, in.logits.size(0), in.logits.size(1));
  WEFT_CHECK_GT(in.logits.size(1), 0);
  WEFT_CHECK_GE(workspace.bytes(), workspace_bytes);
}

}  // namespace weft::checks

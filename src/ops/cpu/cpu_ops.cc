#include "ops/cpu/cpu_ops.h"

#include <cstring>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/gather.h"
#include "ops/cpu/merge.h"
#include "ops/cpu/moe.h"
#include "ops/cpu/rope.h"
#include "ops/cpu/sample.h"

namespace weft {
namespace {

bool is_compute(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

bool is_convertible(DType from, DType to) { return from == to || (is_compute(from) && is_compute(to)); }

bool rows_are_contiguous(const ConstView& view) {
  const int last = view.dims() - 1;
  return view.stride(last) == 1 || view.size(last) <= 1 || view.count() == 0;
}

/// Neighbours of the last dimension are neighbours in memory, the elements are of a compute dtype.
void check_activation(const ConstView& view, int dims) {
  WEFT_CHECK_EQ(view.dims(), dims);
  WEFT_CHECK(is_compute(view.dtype())) << to_string(view.dtype());
  WEFT_CHECK(rows_are_contiguous(view)) << "stride of the last dimension " << view.stride(dims - 1);
}

/// Likewise, and [rows, columns].
void check_matrix(const ConstView& view, DType dtype, int64_t rows, int64_t columns) {
  WEFT_CHECK(view.dtype() == dtype) << to_string(view.dtype()) << " instead of " << to_string(dtype);
  WEFT_CHECK_EQ(view.dims(), 2);
  WEFT_CHECK_EQ(view.size(0), rows);
  WEFT_CHECK_EQ(view.size(1), columns);
  WEFT_CHECK(rows_are_contiguous(view)) << "stride of the last dimension " << view.stride(1);
}

void check_same_sizes(const ConstView& a, const ConstView& b) {
  WEFT_CHECK_EQ(a.dims(), b.dims());
  for (int d = 0; d < a.dims(); ++d) WEFT_CHECK_EQ(a.size(d), b.size(d)) << "dimension " << d;
}

/// The types that a product of x with w may have.
void check_product(const Matrix& w, const ConstView& x, const ConstView& out) {
  WEFT_CHECK(x.dtype() == w.dtype()) << to_string(x.dtype()) << " rows, matrix of " << to_string(w.dtype());
  WEFT_CHECK(out.dtype() == x.dtype() || out.dtype() == DType::f32) << to_string(out.dtype());
}

/// Every row points into the logits and the lists.
void check_sampled(const SampledLogits& in, const View& workspace, size_t workspace_bytes) {
  const int64_t logit_rows = in.logits.size(0), vocab = in.logits.size(1);
  check_matrix(in.logits, DType::f32, logit_rows, vocab);
  WEFT_CHECK_GT(vocab, 0);
  WEFT_CHECK_GE(workspace.bytes(), workspace_bytes);
  const auto masks = in.token_masks.size() / static_cast<size_t>((vocab + 31) / 32);
  const auto check_slice = [](PlanSlice slice, size_t entries) {
    WEFT_CHECK(slice.begin >= 0 && slice.count >= 0 &&
               static_cast<size_t>(slice.begin) + static_cast<size_t>(slice.count) <= entries)
        << "entries [" << slice.begin << ", +" << slice.count << ") of " << entries;
  };
  for (size_t r = 0; r < in.rows.size(); ++r) {
    const SamplingRow& row = in.rows[r];
    WEFT_CHECK(in.logit_row[r] >= 0 && in.logit_row[r] < logit_rows) << "logit row " << in.logit_row[r] << " of " << logit_rows;
    WEFT_CHECK(row.allowed_mask < static_cast<int64_t>(masks)) << "mask " << row.allowed_mask << " of " << masks;
    check_slice(row.penalty_tokens, in.penalty_tokens.size());
    check_slice(row.biases, in.biases.size());
  }
}

int64_t stride_bytes(const ConstView& view, int d) { return view.stride(d) * static_cast<int64_t>(size_of(view.dtype())); }

const std::byte* bytes_of(const ConstView& view) { return static_cast<const std::byte*>(view.data()); }
std::byte* bytes_of(const View& view) { return static_cast<std::byte*>(view.data()); }

const cpu::PackedMatrix& packed(const Matrix& w) { return static_cast<const cpu::PackedMatrix&>(w); }

/// A contiguous view of `data` with the type and sizes of `like`.
View packed_like(const ConstView& like, void* data) {
  switch (like.dims()) {
    case 1:
      return View(data, like.dtype(), {like.size(0)});
    case 2:
      return View(data, like.dtype(), {like.size(0), like.size(1)});
    case 3:
      return View(data, like.dtype(), {like.size(0), like.size(1), like.size(2)});
    default:
      return View(data, like.dtype(), {like.size(0), like.size(1), like.size(2), like.size(3)});
  }
}

}  // namespace

CpuOps::CpuOps(int threads, cpu::ManyRows many_rows) : pool_(threads), products_(pool_, many_rows) {}

// --- memory -----------------------------------------------------------------------------------------------------------

Buffer CpuOps::allocate(size_t bytes) { return Buffer::host(bytes); }

void CpuOps::upload(const void* host, View device) {
  WEFT_CHECK(device.is_contiguous());
  if (device.bytes() != 0) std::memcpy(device.data(), host, device.bytes());
}

void CpuOps::download(ConstView device, void* host) { cpu::copy(pool_, device, packed_like(device, host)); }

void CpuOps::copy(std::span<const CopyRun> runs) {
  pool_.run(static_cast<int64_t>(runs.size()), [&](int64_t i, int) {
    const CopyRun& run = runs[static_cast<size_t>(i)];
    if (run.bytes != 0) std::memcpy(run.target, run.source, run.bytes);
  });
}

void CpuOps::copy(ConstView in, View out) {
  WEFT_CHECK(is_convertible(in.dtype(), out.dtype())) << to_string(in.dtype()) << " to " << to_string(out.dtype());
  check_same_sizes(in, out);
  cpu::copy(pool_, in, out);
}

void CpuOps::run_recorded(uint64_t, const std::function<void()>& body) { body(); }

// --- weights and products ---------------------------------------------------------------------------------------------

std::unique_ptr<Matrix> CpuOps::pack(ConstView matrix, DType dtype) {
  return std::make_unique<cpu::PackedMatrix>(pool_, matrix, dtype);
}

size_t CpuOps::packed_bytes(int64_t out, int64_t in, DType dtype) const { return cpu::PackedMatrix::bytes_for(out, in, dtype); }

void CpuOps::linear(const Matrix& w, ConstView x, const float* bias, View out) {
  check_product(w, x, out);
  check_matrix(x, w.dtype(), x.size(0), w.in());
  check_matrix(out, out.dtype(), x.size(0), w.out());
  products_.add({.w = &packed(w),
                 .x = bytes_of(x),
                 .x_stride = stride_bytes(x, 0),
                 .rows = x.size(0),
                 .bias = bias,
                 .out = bytes_of(out),
                 .out_stride = stride_bytes(out, 0)});
  products_.run(out.dtype());
}

void CpuOps::head_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, View out) {
  const auto heads = static_cast<int64_t>(w.size());
  check_activation(x, 3);
  check_activation(out, 3);
  WEFT_CHECK_EQ(x.size(1), heads);
  WEFT_CHECK_EQ(out.size(1), heads);
  for (int64_t h = 0; h < heads; ++h) {
    const Matrix& head = *w[static_cast<size_t>(h)];
    const ConstView rows = x.slice(1, h, 1);
    const View results = out.slice(1, h, 1);
    check_product(head, x, out);
    WEFT_CHECK_EQ(x.size(2), head.in());
    WEFT_CHECK_EQ(out.size(2), head.out());
    WEFT_CHECK_EQ(x.size(0), out.size(0));
    products_.add({.w = &packed(head),
                   .x = bytes_of(rows),
                   .x_stride = stride_bytes(x, 0),
                   .rows = x.size(0),
                   .out = bytes_of(results),
                   .out_stride = stride_bytes(out, 0)});
  }
  products_.run(out.dtype());
}

void CpuOps::expert_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, const ExpertRows& rows, bool gather,
                           View out) {
  check_activation(x, 2);
  check_activation(out, 2);
  WEFT_CHECK_EQ(static_cast<int64_t>(rows.offsets[w.size()]), out.size(0));
  WEFT_CHECK(gather || x.size(0) == out.size(0)) << x.size(0) << " rows of x, " << out.size(0) << " grouped rows";
  for (size_t e = 0; e < w.size(); ++e) {
    const int64_t first = rows.offsets[e], count = rows.offsets[e + 1] - first;
    if (count == 0) continue;
    const Matrix& expert = *w[e];
    check_product(expert, x, out);
    WEFT_CHECK_EQ(x.size(1), expert.in());
    WEFT_CHECK_EQ(out.size(1), expert.out());
    products_.add({.w = &packed(expert),
                   .x = gather ? bytes_of(x) : bytes_of(x.rows(first, count)),
                   .x_stride = stride_bytes(x, 0),
                   .source = gather ? rows.source + first : nullptr,
                   .rows = count,
                   .out = bytes_of(out.rows(first, count)),
                   .out_stride = stride_bytes(out, 0)});
  }
  products_.run(out.dtype());
}

// --- elementwise ------------------------------------------------------------------------------------------------------

void CpuOps::embed(const int32_t* ids, ConstView table, int64_t first_row, View out) {
  check_activation(out, 2);
  check_activation(table, 2);
  WEFT_CHECK_EQ(table.size(1), out.size(1));
  cpu::embed(pool_, ids, table, first_row, out);
}

void CpuOps::rms_norm(ConstView x, const float* weight, float eps, View out) {
  WEFT_CHECK(x.dims() == 2 || x.dims() == 3) << x.dims() << " dimensions";
  check_activation(x, x.dims());
  check_activation(out, x.dims());
  WEFT_CHECK(x.dtype() == out.dtype()) << to_string(x.dtype()) << " to " << to_string(out.dtype());
  check_same_sizes(x, out);
  cpu::rms_norm(pool_, x, weight, eps, out);
}

void CpuOps::add_rms_norm(ConstView delta, View residual, const float* weight, float eps, View out) {
  check_activation(residual, 2);
  check_matrix(delta, residual.dtype(), residual.size(0), residual.size(1));
  check_matrix(out, residual.dtype(), residual.size(0), residual.size(1));
  cpu::add_rms_norm(pool_, delta, residual, weight, eps, out);
}

void CpuOps::add(ConstView y, View x) {
  check_activation(x, 2);
  check_matrix(y, x.dtype(), x.size(0), x.size(1));
  cpu::add(pool_, y, x);
}

void CpuOps::silu_mul(ConstView gate_up, View out) {
  check_activation(out, 2);
  check_matrix(gate_up, out.dtype(), out.size(0), 2 * out.size(1));
  cpu::silu_mul(pool_, gate_up, out);
}

// --- experts ----------------------------------------------------------------------------------------------------------

void CpuOps::route(ConstView logits, const Routing& routing, View experts, View weights) {
  check_matrix(logits, DType::f32, logits.size(0), logits.size(1));
  check_matrix(experts, DType::i32, logits.size(0), routing.top_k);
  check_matrix(weights, DType::f32, logits.size(0), routing.top_k);
  cpu::route(pool_, logits, routing, experts, weights);
}

void CpuOps::group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows) {
  check_matrix(experts, DType::i32, experts.size(0), experts.size(1));
  cpu::group_by_expert(experts, num_experts, rows);
}

void CpuOps::combine_experts(ConstView y, const ExpertRows& rows, ConstView weights, ConstView shared, View out) {
  check_activation(out, 2);
  check_matrix(weights, DType::f32, out.size(0), weights.size(1));
  check_matrix(y, out.dtype(), out.size(0) * weights.size(1), out.size(1));
  if (!shared.empty()) check_matrix(shared, out.dtype(), out.size(0), out.size(1));
  cpu::combine_experts(pool_, y, rows.place, weights, shared, out);
}

// --- attention --------------------------------------------------------------------------------------------------------

void CpuOps::rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin) {
  cpu::rope_table(positions, inv_freq, factor, cos, sin);
}

void CpuOps::rope_append(const RopeAppend& args) { cpu::rope_append(pool_, args); }

void CpuOps::gather_rows(const KvView& kv, const int32_t* slots, View k, View v) { cpu::gather_rows(pool_, kv, slots, k, v); }

void CpuOps::attend(const Attention& args) { cpu::attend(pool_, attend_, args); }

void CpuOps::merge(std::span<const Partial> partials, View out, View lse) { cpu::merge(pool_, partials, out, lse); }

// --- sampling ---------------------------------------------------------------------------------------------------------

size_t CpuOps::sampling_workspace_bytes(int64_t logit_rows, int64_t vocab) const {
  return cpu::sampling_workspace_bytes(pool_, logit_rows, vocab);
}

void CpuOps::sample(const SampledLogits& in, View workspace, int32_t* ids) {
  check_sampled(in, workspace, sampling_workspace_bytes(in.logits.size(0), in.logits.size(1)));
  cpu::sample(pool_, in, workspace, ids);
}

void CpuOps::log_probs(const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out) {
  check_sampled(in, workspace, sampling_workspace_bytes(in.logits.size(0), in.logits.size(1)));
  cpu::log_probs(pool_, in, workspace, ids, out);
}

}  // namespace weft

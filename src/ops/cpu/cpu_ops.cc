#include "ops/cpu/cpu_ops.h"

#include <cstring>

#include "ops/checks.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/gather.h"
#include "ops/cpu/merge.h"
#include "ops/cpu/moe.h"
#include "ops/cpu/rope.h"
#include "ops/cpu/sample.h"
#include "ops/packed_like.h"

namespace weft {
namespace {

/// Every row points into the logits and the lists.
void check_sampled(const SampledLogits& in, const View& workspace, size_t workspace_bytes) {
  checks::logits(in, workspace, workspace_bytes);
  const int64_t logit_rows = in.logits.size(0), vocab = in.logits.size(1);
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
  checks::copy(in, out);
  cpu::copy(pool_, in, out);
}

void CpuOps::run_recorded(uint64_t, const std::function<void()>& body) { body(); }

// --- weights and products ---------------------------------------------------------------------------------------------

std::unique_ptr<Matrix> CpuOps::pack(ConstView matrix, DType dtype) {
  return std::make_unique<cpu::PackedMatrix>(pool_, matrix, dtype);
}

size_t CpuOps::packed_bytes(int64_t out, int64_t in, DType dtype) const { return cpu::PackedMatrix::bytes_for(out, in, dtype); }

void CpuOps::linear(const Matrix& w, ConstView x, const float* bias, View out) {
  checks::linear(w, x, out);
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
  checks::head_linear(w, x, out);
  for (int64_t h = 0; h < x.size(1); ++h) {
    const ConstView rows = x.slice(1, h, 1);
    const View results = out.slice(1, h, 1);
    products_.add({.w = &packed(*w[static_cast<size_t>(h)]),
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
  checks::expert_linear(w, x, gather, out);
  WEFT_CHECK_EQ(static_cast<int64_t>(rows.offsets[w.size()]), out.size(0));
  for (size_t e = 0; e < w.size(); ++e) {
    const int64_t first = rows.offsets[e], count = rows.offsets[e + 1] - first;
    if (count == 0) continue;
    products_.add({.w = &packed(*w[e]),
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
  checks::embed(table, out);
  cpu::embed(pool_, ids, table, first_row, out);
}

void CpuOps::rms_norm(ConstView x, const float* weight, float eps, View out) {
  checks::rms_norm(x, out);
  cpu::rms_norm(pool_, x, weight, eps, out);
}

void CpuOps::add_rms_norm(ConstView delta, View residual, const float* weight, float eps, View out) {
  checks::add_rms_norm(delta, residual, out);
  cpu::add_rms_norm(pool_, delta, residual, weight, eps, out);
}

void CpuOps::add(ConstView y, View x) {
  checks::add(y, x);
  cpu::add(pool_, y, x);
}

void CpuOps::silu_mul(ConstView gate_up, View out) {
  checks::silu_mul(gate_up, out);
  cpu::silu_mul(pool_, gate_up, out);
}

// --- experts ----------------------------------------------------------------------------------------------------------

void CpuOps::route(ConstView logits, const Routing& routing, View experts, View weights) {
  checks::route(logits, routing, experts, weights);
  cpu::route(pool_, logits, routing, experts, weights);
}

void CpuOps::group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows) {
  checks::matrix(experts, DType::i32, experts.size(0), experts.size(1));
  cpu::group_by_expert(experts, num_experts, rows);
}

void CpuOps::combine_experts(ConstView y, const ExpertRows& rows, ConstView weights, ConstView shared, View out) {
  checks::combine_experts(y, weights, shared, out);
  cpu::combine_experts(pool_, y, rows.place, weights, shared, out);
}

// --- attention --------------------------------------------------------------------------------------------------------

void CpuOps::rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin) {
  checks::rope_table(inv_freq, cos, sin);
  cpu::rope_table(positions, inv_freq, factor, cos, sin);
}

void CpuOps::rope_append(const RopeAppend& args) {
  checks::rope_append(args);
  cpu::rope_append(pool_, args);
}

void CpuOps::gather_rows(const KvView& kv, const int32_t* slots, View k, View v) {
  checks::gather_rows(kv, k, v);
  cpu::gather_rows(pool_, kv, slots, k, v);
}

void CpuOps::attend(const Attention& args) {
  if (args.q.size(1) == 0) return;
  checks::attend(args);
  cpu::attend(pool_, attend_, args);
}

void CpuOps::merge(std::span<const Partial> partials, View out, View lse) {
  checks::merge(partials, out, lse);
  cpu::merge(pool_, partials, out, lse);
}

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

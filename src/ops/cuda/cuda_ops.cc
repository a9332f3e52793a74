#include "ops/cuda/cuda_ops.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/cuda/error.h"
#include "ops/cuda/heads_of.h"
#include "ops/packed_like.h"

namespace weft {

using cuda::check;

namespace {

const cuda::DeviceMatrix& on_device(const Matrix& w) { return static_cast<const cuda::DeviceMatrix&>(w); }

/// Pads sizes and strides to four dimensions, from the front.
void fill_dims(const ConstView& view, int64_t (&sizes)[4], int64_t (&strides)[4]) {
  for (int d = 0; d < 4; ++d) {
    const int from = d - (4 - view.dims());
    sizes[d] = from >= 0 ? view.size(from) : 1;
    strides[d] = from >= 0 ? view.stride(from) : 0;
  }
}

cuda::CopyParams copy_params(const ConstView& in, const View& out) {
  cuda::CopyParams params{.in = in.data(), .out = out.data(), .from = in.dtype(), .to = out.dtype()};
  fill_dims(in, params.sizes, params.in_strides);
  fill_dims(out, params.sizes, params.out_strides);
  return params;
}

cuda::TiledProductParams tiled_params(std::span<const std::unique_ptr<Matrix>> w, const ConstView& x, const View& out) {
  WEFT_CHECK_LE(w.size(), static_cast<size_t>(cuda::TiledProductParams::kMostMatrices)) << "matrices of one product";
  cuda::TiledProductParams params{.in_dtype = x.dtype(),
                                  .out_dtype = out.dtype(),
                                  .x = x.data(),
                                  .out = out.data(),
                                  .x_stride = x.stride(0),
                                  .out_stride = out.stride(0),
                                  .rows = out.size(0),
                                  .columns = out.size(out.dims() - 1),
                                  .depth = x.size(x.dims() - 1)};
  params.matrix_stride = cuda::DeviceMatrix::stride_of(params.depth, x.dtype());
  params.count = static_cast<int>(w.size());
  for (size_t i = 0; i < w.size(); ++i) params.matrices[i] = on_device(*w[i]).data();
  return params;
}

}  // namespace

CudaOps::CudaOps(int device, bool invariant)
    : device_(device),
      ring_(device_),
      products_(device_),
      invariant_(invariant),
      packed_(device_),
      unbiased_(device_),
      partials_(device_) {
  check(cuda::allow_attend_memory(device_.traits().shared_bytes), "cudaFuncSetAttribute(shared memory)",
        device_.traits().shared_bytes);
}

// --- memory -----------------------------------------------------------------------------------------------------------

void CudaOps::upload(const void* host, View device) {
  WEFT_CHECK(device.is_contiguous());
  device_.make_current();
  ring_.copy(host, device.bytes(), static_cast<std::byte*>(device.data()));
}

void CudaOps::download(ConstView device, void* host) {
  if (device.bytes() == 0) return;
  device_.make_current();
  if (!device.is_contiguous()) {
    const View packed = packed_like(device, packed_.at_least(device.bytes()));
    check(cuda::launch_copy(copy_params(device, packed), device_.stream()), "copy");
    device = packed;
  }
  check(cudaMemcpyAsync(host, device.data(), device.bytes(), cudaMemcpyDeviceToHost, device_.stream()), "cudaMemcpyAsync",
        device.bytes());
  device_.synchronize();
}

void CudaOps::copy(std::span<const CopyRun> runs) {
  device_.make_current();
  constexpr size_t kMost = cuda::CopyRunsParams::kMost;
  for (size_t first = 0; first < runs.size(); first += kMost) {
    cuda::CopyRunsParams params{};
    for (const CopyRun& run : runs.subspan(first, std::min(kMost, runs.size() - first))) {
      params.runs[params.count++] = {run.target, run.source, run.bytes};
      params.longest = std::max(params.longest, run.bytes);
    }
    check(cuda::launch_copy_runs(params, device_.stream()), "copy_runs");
  }
}

void CudaOps::copy(ConstView in, View out) {
  checks::copy(in, out);
  if (in.dtype() == out.dtype() && in.is_contiguous() && out.is_contiguous()) {
    const CopyRun whole{static_cast<std::byte*>(out.data()), static_cast<const std::byte*>(in.data()), in.bytes()};
    return copy(std::span(&whole, 1));
  }
  device_.make_current();
  check(cuda::launch_copy(copy_params(in, out), device_.stream()), "copy");
}

void CudaOps::run_recorded(uint64_t, const std::function<void()>& body) { body(); }

// --- weights and products ---------------------------------------------------------------------------------------------

std::unique_ptr<Matrix> CudaOps::pack(ConstView matrix, DType dtype) {
  device_.make_current();
  return std::make_unique<cuda::DeviceMatrix>(device_, ring_, matrix, dtype);
}

size_t CudaOps::packed_bytes(int64_t out, int64_t in, DType dtype) const {
  return cuda::DeviceMatrix::bytes_for(out, in, dtype);
}

void CudaOps::linear(const Matrix& w, ConstView x, const float* bias, View out) {
  checks::linear(w, x, out);
  const int64_t rows = x.size(0);
  if (rows == 0 || w.out() == 0) return;
  device_.make_current();
  if (!invariant_ && w.in() > 0) {
    // With a bias the product is kept in float32, so that the sum is rounded once.
    const bool aside = bias != nullptr;
    const size_t bytes = static_cast<size_t>(rows * w.out()) * sizeof(float);
    const View product = aside ? View(unbiased_.at_least(bytes), DType::f32, {rows, w.out()}) : out;
    if (products_.multiply(on_device(w), x, product)) {
      if (!aside) return;
      check(cuda::launch_add_bias({.x = product.as<float>(),
                                   .bias = bias,
                                   .out = out.data(),
                                   .to = out.dtype(),
                                   .out_stride = out.stride(0),
                                   .rows = rows,
                                   .width = w.out()},
                                  device_.stream()),
            "add_bias");
      return;
    }
  }
  cuda::TiledProductParams params = tiled_params({}, x, out);
  params.bias = bias;
  params.count = 1;
  params.matrices[0] = on_device(w).data();
  const cuda::TiledShape shape = cuda::plan_tiled(rows);
  check(cuda::launch_tiled_product(params, shape.tile_rows, shape.row_tiles, device_.stream()), "tiled_product");
}

void CudaOps::head_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, View out) {
  checks::head_linear(w, x, out);
  if (x.size(0) == 0 || w.empty()) return;
  device_.make_current();
  cuda::TiledProductParams params = tiled_params(w, x, out);
  params.x_head_stride = x.stride(1);
  params.out_head_stride = out.stride(1);
  const cuda::TiledShape shape = cuda::plan_tiled(params.rows);
  check(cuda::launch_tiled_product(params, shape.tile_rows, shape.row_tiles, device_.stream()), "tiled_product");
}

void CudaOps::expert_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, const ExpertRows& rows, bool gather,
                            View out) {
  checks::expert_linear(w, x, gather, out);
  if (out.size(0) == 0 || w.empty()) return;
  device_.make_current();
  cuda::TiledProductParams params = tiled_params(w, x, out);
  params.source = gather ? rows.source : nullptr;
  params.offsets = rows.offsets;
  const cuda::TiledShape shape = cuda::plan_tiled_experts(params.rows, params.count);
  check(cuda::launch_tiled_product(params, shape.tile_rows, shape.row_tiles, device_.stream()), "tiled_product");
}

// --- elementwise ------------------------------------------------------------------------------------------------------

void CudaOps::embed(const int32_t* ids, ConstView table, int64_t first_row, View out) {
  checks::embed(table, out);
  device_.make_current();
  check(cuda::launch_embed({.ids = ids,
                            .table = table.data(),
                            .out = out.data(),
                            .from = table.dtype(),
                            .to = out.dtype(),
                            .table_stride = table.stride(0),
                            .out_stride = out.stride(0),
                            .rows = out.size(0),
                            .width = out.size(1),
                            .first_row = first_row,
                            .table_rows = table.size(0)},
                           device_.stream()),
        "embed");
}

void CudaOps::rms_norm(ConstView x, const float* weight, float eps, View out) {
  checks::rms_norm(x, out);
  device_.make_current();
  check(cuda::launch_rms_norm({.dtype = x.dtype(),
                               .x = cuda::heads_of(x),
                               .delta = {},
                               .residual = {},
                               .weight = weight,
                               .out = cuda::heads_of(out),
                               .eps = eps,
                               .rows = x.size(0),
                               .heads = x.dims() == 3 ? x.size(1) : 1,
                               .width = x.size(x.dims() - 1)},
                              device_.stream()),
        "rms_norm");
}

void CudaOps::add_rms_norm(ConstView delta, View residual, const float* weight, float eps, View out) {
  checks::add_rms_norm(delta, residual, out);
  device_.make_current();
  check(cuda::launch_rms_norm({.dtype = residual.dtype(),
                               .x = {},
                               .delta = cuda::heads_of(delta),
                               .residual = cuda::heads_of(residual),
                               .weight = weight,
                               .out = cuda::heads_of(out),
                               .eps = eps,
                               .rows = residual.size(0),
                               .heads = 1,
                               .width = residual.size(1)},
                              device_.stream()),
        "rms_norm");
}

void CudaOps::add(ConstView y, View x) {
  checks::add(y, x);
  device_.make_current();
  check(cuda::launch_add({.dtype = x.dtype(),
                          .y = y.data(),
                          .x = x.data(),
                          .y_stride = y.stride(0),
                          .x_stride = x.stride(0),
                          .rows = x.size(0),
                          .width = x.size(1)},
                         device_.stream()),
        "add");
}

void CudaOps::silu_mul(ConstView gate_up, View out) {
  checks::silu_mul(gate_up, out);
  device_.make_current();
  check(cuda::launch_silu_mul({.dtype = out.dtype(),
                               .gate_up = gate_up.data(),
                               .out = out.data(),
                               .in_stride = gate_up.stride(0),
                               .out_stride = out.stride(0),
                               .rows = out.size(0),
                               .width = out.size(1)},
                              device_.stream()),
        "silu_mul");
}

// --- experts ----------------------------------------------------------------------------------------------------------

void CudaOps::route(ConstView logits, const Routing& routing, View experts, View weights) {
  checks::route(logits, routing, experts, weights);
  device_.make_current();
  check(cuda::launch_route({.logits = logits.as<float>(),
                            .chosen = experts.as<int32_t>(),
                            .weights = weights.as<float>(),
                            .bias = routing.bias,
                            .logits_stride = logits.stride(0),
                            .chosen_stride = experts.stride(0),
                            .weights_stride = weights.stride(0),
                            .rows = logits.size(0),
                            .experts = static_cast<int>(logits.size(1)),
                            .top_k = routing.top_k,
                            .n_group = routing.n_group,
                            .topk_group = routing.topk_group,
                            .sigmoid = routing.scores == Routing::Scores::sigmoid,
                            .top2_sum = routing.group_rank == Routing::GroupRank::top2_sum,
                            .normalize = routing.normalize,
                            .scale = routing.scale},
                           device_.stream()),
        "route");
}

void CudaOps::group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows) {
  checks::matrix(experts, DType::i32, experts.size(0), experts.size(1));
  device_.make_current();
  check(cuda::launch_group_by_expert({.experts = experts.as<int32_t>(),
                                      .source = rows.source,
                                      .place = rows.place,
                                      .offsets = rows.offsets,
                                      .row_stride = experts.stride(0),
                                      .choice_stride = experts.stride(1),
                                      .rows = experts.size(0),
                                      .top_k = experts.size(1),
                                      .num_experts = num_experts},
                                     device_.stream()),
        "group_by_expert");
}

void CudaOps::combine_experts(ConstView y, const ExpertRows& rows, ConstView weights, ConstView shared, View out) {
  checks::combine_experts(y, weights, shared, out);
  device_.make_current();
  check(cuda::launch_combine_experts({.dtype = out.dtype(),
                                      .y = y.data(),
                                      .place = rows.place,
                                      .weights = weights.as<float>(),
                                      .shared = shared.data(),
                                      .out = out.data(),
                                      .y_stride = y.stride(0),
                                      .weights_stride = weights.stride(0),
                                      .shared_stride = shared.empty() ? 0 : shared.stride(0),
                                      .out_stride = out.stride(0),
                                      .rows = out.size(0),
                                      .top_k = weights.size(1),
                                      .width = out.size(1)},
                                     device_.stream()),
        "combine_experts");
}

// --- sampling ---------------------------------------------------------------------------------------------------------

size_t CudaOps::sampling_workspace_bytes(int64_t logit_rows, int64_t vocab) const {
  return static_cast<size_t>(cuda::sample_blocks(logit_rows)) * cuda::sample_scratch_bytes(vocab);
}

void CudaOps::sample(const SampledLogits& in, View workspace, int32_t* ids) {
  const int64_t logit_rows = in.logits.size(0), vocab = in.logits.size(1);
  checks::logits(in, workspace, sampling_workspace_bytes(logit_rows, vocab));
  device_.make_current();
  check(cuda::launch_sample({.logits = in.logits.as<float>(),
                             .logits_stride = in.logits.stride(0),
                             .vocab = vocab,
                             .rows = in.rows.data(),
                             .logit_row = in.logit_row,
                             .penalty_tokens = in.penalty_tokens.data(),
                             .biases = in.biases.data(),
                             .token_masks = in.token_masks.data(),
                             .count = static_cast<int64_t>(in.rows.size()),
                             .blocks = cuda::sample_blocks(logit_rows),
                             .scratch = static_cast<std::byte*>(workspace.data()),
                             .ids = ids},
                            cuda::sample_scratch_bytes(vocab), device_.stream()),
        "sample");
}

void CudaOps::log_probs(const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out) {
  checks::logits(in, workspace, 0);
  device_.make_current();
  check(cuda::launch_log_probs({.logits = in.logits.as<float>(),
                                .logits_stride = in.logits.stride(0),
                                .vocab = in.logits.size(1),
                                .rows = in.rows.data(),
                                .logit_row = in.logit_row,
                                .ids = ids,
                                .count = static_cast<int64_t>(in.rows.size()),
                                .of_ids = out.of_ids,
                                .of_targets = out.of_targets,
                                .max_top = out.max_top,
                                .top_ids = out.top_ids,
                                .top_log_probs = out.top_log_probs},
                               device_.stream()),
        "log_probs");
}

}  // namespace weft

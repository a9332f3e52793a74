// CudaOps: rotation, the cache, attention and merge.

#include <algorithm>

#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/error.h"
#include "ops/cuda/heads_of.h"

namespace weft {

using cuda::check;
using cuda::heads_of;

namespace {

/// fp8_ds_mla rows have float32 scales in them.
void check_latent_rows(const KvView& kv) {
  if (kv.format != KvFormat::fp8_ds_mla) return;
  WEFT_CHECK(kv.k_stride % 4 == 0 && reinterpret_cast<uintptr_t>(kv.k) % 4 == 0)
      << "rows of " << kv.k_stride << " bytes are not aligned to their scales";
}

/// Whether four neighbours of any row and head may be loaded at once.
cuda::KeyPlane key_plane(const void* data, int64_t row_stride, int64_t head_stride, int dim, DType dtype) {
  const bool aligned = reinterpret_cast<uintptr_t>(data) % (4 * size_of(dtype)) == 0;
  return {.data = data,
          .row_stride = row_stride,
          .head_stride = head_stride,
          .by_fours = aligned && row_stride % 4 == 0 && head_stride % 4 == 0 && dim % 4 == 0};
}

}  // namespace

void CudaOps::rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin) {
  checks::rope_table(inv_freq, cos, sin);
  WEFT_CHECK_LE(inv_freq.size(), static_cast<size_t>(cuda::RopeTableParams::kMostPairs)) << "pairs of a rotated head";
  device_.make_current();
  cuda::RopeTableParams params{.positions = positions,
                               .cos = cos.as<float>(),
                               .sin = sin.as<float>(),
                               .cos_strides = {cos.stride(0), cos.stride(1)},
                               .sin_strides = {sin.stride(0), sin.stride(1)},
                               .rows = cos.size(0),
                               .factor = factor,
                               .pairs = static_cast<int>(inv_freq.size())};
  std::copy(inv_freq.begin(), inv_freq.end(), params.inv_freq);
  check(cuda::launch_rope_table(params, device_.stream()), "rope_table");
}

void CudaOps::rope_append(const RopeAppend& args) {
  if (args.q.size(0) == 0) return;
  checks::rope_append(args);
  check_latent_rows(args.kv);
  device_.make_current();
  check(cuda::launch_rope_append({.dtype = args.q.dtype(),
                                  .cos = args.cos.as<float>(),
                                  .sin = args.sin.as<float>(),
                                  .cos_stride = args.cos.stride(0),
                                  .sin_stride = args.sin.stride(0),
                                  .rotary = args.rotary,
                                  .interleaved = args.interleaved,
                                  .q = heads_of(args.q),
                                  .q_out = heads_of(args.q_out),
                                  .k = heads_of(args.k),
                                  .k_out = heads_of(args.k_out),
                                  .v = heads_of(args.kv.is_latent() ? args.latent : args.v),
                                  .rows = args.q.size(0),
                                  .heads = static_cast<int>(args.q.size(1)),
                                  .dim = static_cast<int>(args.q.size(2)),
                                  .k_dim = static_cast<int>(args.k.size(2)),
                                  .slots = args.slots,
                                  .kv = args.kv},
                                 device_.stream()),
        "rope_append");
}

void CudaOps::gather_rows(const KvView& kv, const int32_t* slots, View k, View v) {
  checks::gather_rows(kv, k, v);
  check_latent_rows(kv);
  device_.make_current();
  check(cuda::launch_gather_rows({.kv = kv,
                                  .slots = slots,
                                  .rows = k.size(0),
                                  .dtype = k.dtype(),
                                  .k = heads_of(k),
                                  .v = v.empty() ? cuda::Heads{} : heads_of(v)},
                                 device_.stream()),
        "gather_rows");
}

void CudaOps::attend(const Attention& args) {
  if (args.q.size(1) == 0) return;
  checks::attend(args);
  const bool paged = args.paged.kv.k != nullptr;
  const KvView& kv = args.paged.kv;
  const ConstView &q = args.q, &rows_k = args.rows.k, &rows_v = args.rows.v;
  const DType kv_dtype = paged ? kv.dtype : rows_k.dtype();
  const auto k_dim = static_cast<int>(q.size(3)), v_dim = static_cast<int>(args.out.size(3));
  const int heads = static_cast<int>(q.size(0) * q.size(2));

  cuda::AttendParams params{.q = q.data(),
                            .q_strides = {q.stride(0), q.stride(1), q.stride(2)},
                            .dtype = q.dtype(),
                            .kv_dtype = kv_dtype,
                            .seq_of = args.seq_of,
                            .begin = args.begin,
                            .end = args.end,
                            .all_rows = q.size(1),
                            .segments = args.segments,
                            .heads_per_block = static_cast<int>(q.size(2)),
                            .group = heads / args.kv_heads(),
                            .kv_heads = args.kv_heads(),
                            .k_dim = k_dim,
                            .v_dim = v_dim,
                            .out = args.out.data(),
                            .lse = args.lse.as<float>(),
                            .out_strides = {args.out.stride(0), args.out.stride(1), args.out.stride(2)},
                            .lse_strides = {args.lse.stride(0), args.lse.stride(1), args.lse.stride(2)}};
  int64_t keys = 0;
  if (paged) {
    check_latent_rows(kv);
    params.k = key_plane(kv.k, kv.k_stride, k_dim, k_dim, kv_dtype);
    params.v = key_plane(kv.v, kv.v_stride, v_dim, v_dim, kv_dtype);
    params.v_is_k = kv.is_latent();
    params.format = kv.format;
    params.tables = args.paged.tables;
    params.table_stride = args.paged.table_stride;
    params.block_tokens = kv.block_tokens;
    keys = args.paged.table_stride * kv.block_tokens;
  } else {
    params.k = key_plane(rows_k.data(), rows_k.stride(0), rows_k.stride(1), k_dim, kv_dtype);
    params.v = key_plane(rows_v.data(), rows_v.stride(0), rows_v.stride(1), v_dim, kv_dtype);
    params.v_is_k = rows_k.data() == rows_v.data() && rows_k.stride(0) == rows_v.stride(0) &&
                    rows_k.stride(1) == rows_v.stride(1) && v_dim <= k_dim;
    keys = rows_k.size(0) * args.segments;
  }
  const KvScales scales = kv_dtype != DType::f8_e4m3 || params.format == KvFormat::fp8_ds_mla ? KvScales{}
                          : paged                                                             ? kv.scales
                                                                                              : args.rows.scales;
  params.score_scale = args.scale * scales.k;
  params.value_scale = scales.v;
  launch_attend(args, params,
                {.rows = q.size(1),
                 .heads = heads,
                 .kv_heads = args.kv_heads(),
                 .k_dim = k_dim,
                 .v_dim = v_dim,
                 .v_is_k = params.v_is_k,
                 .keys = keys,
                 .paged = paged,
                 .invariant = args.invariant});
}

void CudaOps::launch_attend(const Attention& args, cuda::AttendParams& params, const cuda::AttendSizes& sizes) {
  const cuda::AttendShape shape = cuda::plan_attend(sizes, device_.traits());
  WEFT_CHECK_LE(shape.shared_bytes, device_.traits().shared_bytes)
      << "keys of " << sizes.k_dim << " and values of " << sizes.v_dim << " numbers are too large for this GPU";
  device_.make_current();
  if (shape.parts > 1) {
    const size_t partials = static_cast<size_t>(shape.parts * shape.launch_rows * sizes.heads);
    auto* memory =
        reinterpret_cast<float*>(partials_.at_least(partials * (static_cast<size_t>(sizes.v_dim) + 2) * sizeof(float)));
    params.part_max = memory;
    params.part_sum = memory + partials;
    params.part_out = memory + 2 * partials;
  }
  for (int64_t first = 0; first < args.q.size(1); first += shape.launch_rows) {
    params.first_row = first;
    params.rows = std::min(shape.launch_rows, args.q.size(1) - first);
    check(cuda::launch_attend(params, shape, device_.stream()), "attend");
    if (shape.parts > 1) check(cuda::launch_join_parts(params, shape.parts, device_.stream()), "join_parts");
  }
}

void CudaOps::reserve(const AttentionLimits& limits) { partials_.at_least(reserved_bytes(limits)); }

size_t CudaOps::reserved_bytes(const AttentionLimits& limits) const {
  const int64_t partials = cuda::most_partials(limits.heads, device_.traits());
  return static_cast<size_t>(partials * (limits.v_dim + 2)) * sizeof(float);
}

void CudaOps::merge(std::span<const Partial> partials, View out, View lse) {
  checks::merge(partials, out, lse);
  WEFT_CHECK_LE(partials.size(), static_cast<size_t>(cuda::MergeParams::kMost)) << "partial results of one merge";
  device_.make_current();
  cuda::MergeParams params{.dtype = out.dtype(),
                           .out = heads_of(out),
                           .lse = lse.empty() ? nullptr : lse.as<float>(),
                           .lse_row = lse.empty() ? 0 : lse.stride(0),
                           .lse_head = lse.empty() ? 0 : lse.stride(1),
                           .rows = out.size(0),
                           .heads = out.size(1),
                           .dim = out.size(2),
                           .count = static_cast<int>(partials.size())};
  for (size_t i = 0; i < partials.size(); ++i) {
    const ConstView &part = partials[i].out, &part_lse = partials[i].lse;
    params.parts[i] = {part.data(),    part_lse.as<float>(), part.stride(0),
                       part.stride(1), part_lse.stride(0),   part_lse.stride(1)};
  }
  check(cuda::launch_merge(params, device_.stream()), "merge");
}

}  // namespace weft

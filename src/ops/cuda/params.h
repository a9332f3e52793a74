#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "layout/kv_view.h"
#include "ops/sampling.h"

// The arguments of the kernels: plain structures with a shape on every pointer, passed by value. A launch function does nothing
// but launch, and returns what cudaGetLastError says; an empty call launches nothing. Strides are in elements.

namespace weft::cuda {

/// A tensor [rows, heads, D] whose last dimension is contiguous; a matrix [rows, D] has one head.
template <typename Pointer>
struct BasicHeads {
  Pointer data = nullptr;
  int64_t row_stride = 0, head_stride = 0;
};
using Heads = BasicHeads<void*>;
using ConstHeads = BasicHeads<const void*>;

// --- elementwise.cu ---------------------------------------------------------------------------------------------------

struct CopyParams {
  const void* in = nullptr;
  void* out = nullptr;
  DType from = DType::f32, to = DType::f32;  ///< equal, or float32 and bfloat16
  int64_t sizes[4] = {};                     ///< leading ones of a smaller tensor are 1
  int64_t in_strides[4] = {};                ///< any
  int64_t out_strides[4] = {};
};
cudaError_t launch_copy(const CopyParams&, cudaStream_t);

/// Runs of bytes, at most so many in a launch that they fit its arguments.
struct CopyRunsParams {
  static constexpr int kMost = 128;
  struct Run {
    void* target = nullptr;
    const void* source = nullptr;
    size_t bytes = 0;
  };
  Run runs[kMost] = {};
  int count = 0;
  size_t longest = 0;
};
cudaError_t launch_copy_runs(const CopyRunsParams&, cudaStream_t);

struct EmbedParams {
  const int32_t* ids = nullptr;              ///< [rows]
  const void* table = nullptr;               ///< [table_rows, width]
  void* out = nullptr;                       ///< [rows, width]
  DType from = DType::f32, to = DType::f32;  ///< float32 or bfloat16
  int64_t table_stride = 0, out_stride = 0, rows = 0, width = 0, first_row = 0, table_rows = 0;
};
cudaError_t launch_embed(const EmbedParams&, cudaStream_t);

struct NormParams {
  DType dtype = DType::f32;       ///< of all tensors: float32 or bfloat16
  ConstHeads x = {};              ///< [rows, heads, width]
  ConstHeads delta = {};          ///< as `residual`, or null
  Heads residual = {};            ///< [rows, heads, width]: += delta, and then what is normed; null: x is
  const float* weight = nullptr;  ///< [width]
  Heads out = {};                 ///< [rows, heads, width], may be x or delta
  float eps = 0;
  int64_t rows = 0, heads = 0, width = 0;
};
cudaError_t launch_rms_norm(const NormParams&, cudaStream_t);

struct AddParams {
  DType dtype = DType::f32;
  const void* y = nullptr;  ///< [rows, width]
  void* x = nullptr;        ///< [rows, width], x += y
  int64_t y_stride = 0, x_stride = 0, rows = 0, width = 0;
};
cudaError_t launch_add(const AddParams&, cudaStream_t);

struct SiluMulParams {
  DType dtype = DType::f32;
  const void* gate_up = nullptr;  ///< [rows, 2 * width]
  void* out = nullptr;            ///< [rows, width]
  int64_t in_stride = 0, out_stride = 0, rows = 0, width = 0;
};
cudaError_t launch_silu_mul(const SiluMulParams&, cudaStream_t);

/// out = x + bias, rounded to `to`: what cublasLt leaves to us where it would round twice.
struct AddBiasParams {
  const float* x = nullptr;     ///< [rows, width], contiguous
  const float* bias = nullptr;  ///< [width]
  void* out = nullptr;          ///< [rows, width]
  DType to = DType::f32;
  int64_t out_stride = 0, rows = 0, width = 0;
};
cudaError_t launch_add_bias(const AddBiasParams&, cudaStream_t);

// --- tiled_product.cu -------------------------------------------------------------------------------------------------

/// Products of rows with matrices of ours, float32 sums in the order of the depth: a row's bits follow from it and its matrix
/// alone. Three ways to say which rows meet which matrix:
///
///   all      rows [0, rows) and matrices[0]
///   heads    head h of x and of out, matrices[h]
///   experts  rows [offsets[e], offsets[e + 1]) of out and matrices[e]; row i of out is row source[i] of x, or row i
struct TiledProductParams {
  static constexpr int kMostMatrices = 1024;
  DType in_dtype = DType::f32, out_dtype = DType::f32;  ///< of x and the matrices; of out: likewise or float32
  const void* x = nullptr;                              ///< [*, depth], or [rows, heads, depth]
  void* out = nullptr;                                  ///< [rows, columns], or [rows, heads, columns]
  int64_t x_stride = 0, out_stride = 0, x_head_stride = 0, out_head_stride = 0;
  const int32_t* source = nullptr;   ///< experts: [rows], or null
  const int32_t* offsets = nullptr;  ///< experts: [count + 1]; otherwise null
  const float* bias = nullptr;       ///< [columns], or null
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t matrix_stride = 0;  ///< elements from one row of a matrix to the next
  int count = 0;              ///< of matrices
  const void* matrices[kMostMatrices] = {};
};
/// `tile_rows` is one of kTileRows, `row_tiles` enough for all rows (see launch_plan.h).
cudaError_t launch_tiled_product(const TiledProductParams&, int tile_rows, int64_t row_tiles, cudaStream_t);

// --- moe.cu -----------------------------------------------------------------------------------------------------------

struct RouteParams {
  const float* logits = nullptr;  ///< [rows, experts]
  int32_t* chosen = nullptr;      ///< [rows, top_k]
  float* weights = nullptr;       ///< [rows, top_k]
  const float* bias = nullptr;    ///< [experts], or null
  int64_t logits_stride = 0, chosen_stride = 0, weights_stride = 0, rows = 0;
  int experts = 0, top_k = 0, n_group = 0, topk_group = 0;
  bool sigmoid = false, top2_sum = false, normalize = false;
  float scale = 0;
};
cudaError_t launch_route(const RouteParams&, cudaStream_t);

struct GroupParams {
  const int32_t* experts = nullptr;                                 ///< [rows, top_k]
  int32_t *source = nullptr, *place = nullptr, *offsets = nullptr;  ///< as ExpertRows
  int64_t row_stride = 0, choice_stride = 0, rows = 0, top_k = 0;
  int num_experts = 0;
};
cudaError_t launch_group_by_expert(const GroupParams&, cudaStream_t);

struct CombineParams {
  DType dtype = DType::f32;
  const void* y = nullptr;         ///< [rows * top_k, width]
  const int32_t* place = nullptr;  ///< [rows * top_k]
  const float* weights = nullptr;  ///< [rows, top_k]
  const void* shared = nullptr;    ///< [rows, width], or null
  void* out = nullptr;             ///< [rows, width], may be `shared`
  int64_t y_stride = 0, weights_stride = 0, shared_stride = 0, out_stride = 0, rows = 0, top_k = 0, width = 0;
};
cudaError_t launch_combine_experts(const CombineParams&, cudaStream_t);

// --- rope.cu ----------------------------------------------------------------------------------------------------------

struct RopeTableParams {
  static constexpr int kMostPairs = 256;
  const int32_t* positions = nullptr;    ///< [rows]
  float *cos = nullptr, *sin = nullptr;  ///< [rows, pairs]
  int64_t cos_strides[2] = {}, sin_strides[2] = {}, rows = 0;
  double factor = 0;
  int pairs = 0;
  double inv_freq[kMostPairs] = {};
};
cudaError_t launch_rope_table(const RopeTableParams&, cudaStream_t);

struct RopeAppendParams {
  DType dtype = DType::f32;
  const float *cos = nullptr, *sin = nullptr;  ///< [rows, rotary / 2]
  int64_t cos_stride = 0, sin_stride = 0;
  int rotary = 0;
  bool interleaved = false;
  ConstHeads q = {};  ///< [rows, heads, dim]
  Heads q_out = {};   ///< likewise, may be q
  ConstHeads k = {};  ///< [rows, kv.kv_heads, k_dim]
  Heads k_out = {};   ///< likewise, may be k
  ConstHeads v = {};  ///< [rows, kv.kv_heads, kv.v_dim]: the values, or the latent
  int64_t rows = 0;
  int heads = 0, dim = 0, k_dim = 0;
  const int32_t* slots = nullptr;  ///< [rows]
  KvView kv = {};
};
cudaError_t launch_rope_append(const RopeAppendParams&, cudaStream_t);

// --- gather.cu --------------------------------------------------------------------------------------------------------

struct GatherParams {
  KvView kv = {};
  const int32_t* slots = nullptr;  ///< [rows], or null: slot i is row i
  int64_t rows = 0;
  DType dtype = DType::f32;  ///< of the results: float32 or bfloat16, or uint8 for the bytes of a row
  Heads k = {};              ///< [rows, kv_heads, k_dim], or [rows, bytes of a key row]
  Heads v = {};              ///< likewise, or null
};
cudaError_t launch_gather_rows(const GatherParams&, cudaStream_t);

// --- attend.cu --------------------------------------------------------------------------------------------------------

/// Keys, or values: row r of head g is at data + r * row_stride + g * head_stride, in elements (bytes of fp8_ds_mla rows).
struct KeyPlane {
  const void* data = nullptr;
  int64_t row_stride = 0, head_stride = 0;
  bool by_fours = false;  ///< four neighbours may be loaded at once
};

struct AttendParams {
  const void* q = nullptr;  ///< [P, T, h, k_dim]
  int64_t q_strides[3] = {};
  DType dtype = DType::f32;  ///< of q and out
  KeyPlane k = {}, v = {};
  bool v_is_k = false;  ///< the values are the first v_dim numbers of the keys
  DType kv_dtype = DType::f32;
  KvFormat format = KvFormat::elements;
  const int32_t* tables = nullptr;  ///< [sequences, table_stride] of blocks, or null: key j is row j
  int64_t table_stride = 0;
  int block_tokens = 0;
  const int32_t *seq_of = nullptr, *begin = nullptr, *end = nullptr;  ///< [T], [segments, T], [segments, T]
  int64_t all_rows = 0;                                               ///< T
  int segments = 0;
  int64_t first_row = 0, rows = 0;  ///< rows [first_row, first_row + rows) are this launch's
  int heads_per_block = 0;          ///< h
  int group = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  float score_scale = 0;  ///< of q.k, with the scale of stored keys in it
  float value_scale = 0;
  void* out = nullptr;   ///< [P, T, h, v_dim]
  float* lse = nullptr;  ///< [P, T, h]
  int64_t out_strides[3] = {}, lse_strides[3] = {};
  /// Where the keys of a tile are cut into several parts: what each found, [parts, rows * P * h] with the sums before division.
  float* part_out = nullptr;                       ///< [..., v_dim]
  float *part_max = nullptr, *part_sum = nullptr;  ///< the maximum in units of log 2
};
struct AttendShape;  // launch_plan.h
cudaError_t launch_attend(const AttendParams&, const AttendShape&, cudaStream_t);
cudaError_t launch_join_parts(const AttendParams&, int parts, cudaStream_t);
/// Lets the kernels take so much shared memory. Once for each device.
cudaError_t allow_attend_memory(size_t bytes);

// --- merge.cu ---------------------------------------------------------------------------------------------------------

struct MergeParams {
  static constexpr int kMost = 128;
  struct Part {
    const void* out = nullptr;                                     ///< [rows, heads, dim]
    const float* lse = nullptr;                                    ///< [rows, heads]
    int64_t out_row = 0, out_head = 0, lse_row = 0, lse_head = 0;  ///< strides
  };
  DType dtype = DType::f32;
  Heads out = {};        ///< [rows, heads, dim], may be the storage of a part
  float* lse = nullptr;  ///< [rows, heads], or null; likewise
  int64_t lse_row = 0, lse_head = 0, rows = 0, heads = 0, dim = 0;
  int count = 0;
  Part parts[kMost] = {};
};
cudaError_t launch_merge(const MergeParams&, cudaStream_t);

// --- sample.cu --------------------------------------------------------------------------------------------------------

struct SampleParams {
  const float* logits = nullptr;  ///< [*, vocab]
  int64_t logits_stride = 0, vocab = 0;
  const SamplingRow* rows = nullptr;             ///< [count]
  const int32_t* logit_row = nullptr;            ///< [count]
  const PenaltyToken* penalty_tokens = nullptr;  ///< the lists that rows point into
  const LogitBias* biases = nullptr;
  const uint32_t* token_masks = nullptr;  ///< [masks, ceil(vocab / 32)]
  int64_t count = 0;
  int blocks = 0;                ///< that work at once
  std::byte* scratch = nullptr;  ///< [blocks, scratch_bytes]
  int32_t* ids = nullptr;        ///< [count]
};
cudaError_t launch_sample(const SampleParams&, size_t scratch_bytes, cudaStream_t);

struct LogProbParams {
  const float* logits = nullptr;
  int64_t logits_stride = 0, vocab = 0;
  const SamplingRow* rows = nullptr;   ///< [count]
  const int32_t* logit_row = nullptr;  ///< [count]
  const int32_t* ids = nullptr;        ///< [count]
  int64_t count = 0;
  float *of_ids = nullptr, *of_targets = nullptr;  ///< [count]
  int max_top = 0;
  int32_t* top_ids = nullptr;      ///< [count, max_top]
  float* top_log_probs = nullptr;  ///< [count, max_top]
};
cudaError_t launch_log_probs(const LogProbParams&, cudaStream_t);

}  // namespace weft::cuda

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/tensor.h"
#include "layout/kv_view.h"
#include "ops/sampling.h"

namespace weft {

/// A weight matrix [out, in] in the backend's own layout, made by Ops::pack and read by linear and expert_linear.
/// y = x W^T. Either size may be 0: then products are empty or zero.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t out() const { return out_; }
  int64_t in() const { return in_; }
  DType dtype() const { return dtype_; }
  virtual size_t bytes() const = 0;

 protected:
  Matrix(int64_t out, int64_t in, DType dtype) : out_(out), in_(in), dtype_(dtype) {}

 private:
  int64_t out_, in_;
  DType dtype_;
};

/// Keys and values in the paged cache of this rank. Key j of row t is in slot
/// `tables[seq_of[t] * table_stride + j / block_tokens] * block_tokens + j % block_tokens` of `kv`.
struct PagedKeys {
  KvView kv;
  const int32_t* tables = nullptr;
  int64_t table_stride = 0;
};

/// Keys and values as plain rows: this step's own, or gathered context. Key j is row j.
struct RowKeys {
  ConstView k;           ///< [rows, kv_heads, Dk], compute dtype or float8_e4m3
  ConstView v;           ///< [rows, kv_heads, Dv], likewise; may alias k
  KvScales scales = {};  ///< of float8_e4m3 rows
};

/// Partial attention of each row over its own key ranges. Exactly one of `paged` and `rows` is used (`paged.kv.k` set, or not).
///
///   q            [P, T, h, Dk]  compute dtype, already rotated; query head p * h + i is q[p, :, i]
///   seq_of       [T]            sequence of each row; rows of one sequence are consecutive
///   begin, end   [segments, T]  row t sees keys [begin[s, t], end[s, t]) of every segment s; paged has one segment
///   out          [P, T, h, Dv]  compute dtype, softmax(q.k * scale) v, normalised over the keys seen
///   lse          [P, T, h]      float32, natural log of the sum of exp(q.k * scale)
///
/// Query head i uses KV head i / (P * h / kv_heads). A row that sees no key, padding rows included, gets out = 0 and
/// lse = -inf. Keys that no row of a sequence sees are never read. Strides are free except that the last one of q, k, v, out is
/// contiguous. `out` and `lse` alias nothing. Checked: P * h is a multiple of kv_heads.
///
/// Keys and values may be of another dtype than the rest: they are used as the numbers that they stand for. Products of a
/// bfloat16 step may round those of a fp8_ds_mla row to bfloat16; float8_e4m3 fits into it.
///
/// `invariant`: the bits of a row follow from its own query, keys and ranges alone, whatever the other rows are. Otherwise work
/// is cut, and sums ordered, to suit the whole call.
/// Source: Milakov & Gimelshein 2018, online normalizer for softmax.
struct Attention {
  ConstView q;
  PagedKeys paged;
  RowKeys rows;
  const int32_t* seq_of = nullptr;
  const int32_t* begin = nullptr;
  const int32_t* end = nullptr;
  int segments = 1;
  float scale = 1;
  bool invariant = false;
  View out, lse;

  /// KV heads of the keys in use.
  int kv_heads() const { return paged.kv.k != nullptr ? paged.kv.kv_heads : static_cast<int>(rows.k.size(1)); }
};

/// The largest calls of attend that are to come.
struct AttentionLimits {
  int64_t rows = 0;                 ///< T
  int64_t heads = 0, kv_heads = 1;  ///< P * h, and those of the keys
  int64_t k_dim = 0, v_dim = 0;
  int64_t keys = 0;  ///< that the rows of one sequence see, of all segments together
  int segments = 1;
};

/// One partial result: out [T, h, Dv] in the compute dtype, lse [T, h] float32 natural log, -inf where no key was seen.
struct Partial {
  ConstView out, lse;
};

/// Rotation of query and key heads, and the write of this step's rows into the cache, in one operator.
///
///   cos, sin     [T, rotary / 2] float32, made by rope_table; factors on them are already in
///   q            [T, h, D]          the first `rotary` elements of each head turn, the rest is copied, into q_out
///   k            [T, kv_heads, D]   likewise, into k_out
///   v            [T, kv_heads, Dv]  not rotated
///   slots        [T]                row of the cache that takes k_out[t] and v[t]; -1 = another rank stores it, or padding
///
/// Queries and keys of *every* row are produced, whatever its slot: a rank computes queries for tokens it does not store.
/// `interleaved`: pairs are (2i, 2i+1), else (i, i + rotary/2).
///
/// The cache takes float32 or bfloat16 rounded to its dtype, and fp8 as KvFormat describes: nearest even, saturating, NaN stays
/// NaN; a group's scale in a fp8_ds_mla row is max|x| / 448, at least the smallest normal number.
///
/// With a latent cache (kv.is_latent()), k [T, 1, rotary] is the rope part, `latent` [T, 1, v_dim] the normed latent, and the
/// cache row is [latent | rotated k]; v is unused. Otherwise `latent` is unused.
struct RopeAppend {
  ConstView cos, sin;
  int rotary = 0;
  bool interleaved = false;
  ConstView q;
  View q_out;  ///< may be the same storage as q
  ConstView k, v, latent;
  View k_out;  ///< may be the same storage as k
  const int32_t* slots = nullptr;
  KvView kv;
};

/// How a router's scores become experts and weights.
struct Routing {
  static constexpr int kMaxExperts = 1024;
  enum class Scores : uint8_t { softmax, sigmoid };
  /// How a group of experts is ranked where only `topk_group` of `n_group` groups may be chosen from: by its best expert
  /// (DeepSeek-V2), or by the sum of its two best (DeepSeek-V3, GLM-4).
  enum class GroupRank : uint8_t { best, top2_sum };
  Scores scores = Scores::softmax;
  GroupRank group_rank = GroupRank::best;
  int top_k = 1;
  int n_group = 1, topk_group = 1;
  bool normalize = false;       ///< divide the chosen weights by their sum
  float scale = 1;              ///< routed_scaling_factor, multiplied in last
  const float* bias = nullptr;  ///< [experts] float32, added to the scores for choosing only, or null
};

/// Rows grouped by expert: what expert_linear consumes. Made by group_by_expert.
struct ExpertRows {
  int32_t* source = nullptr;   ///< [T * top_k] the row of the layer's input that each grouped row is
  int32_t* place = nullptr;    ///< [T * top_k] where row t's choice number j landed: place[t * top_k + j]
  int32_t* offsets = nullptr;  ///< [experts + 1] grouped rows of expert e are [offsets[e], offsets[e + 1])
};

/// Some bytes to move inside one rank's memory.
struct CopyRun {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  size_t bytes = 0;
};

/// Logit rows and what is wanted of them.
struct SampledLogits {
  ConstView logits;                              ///< [N, V] float32
  std::span<const SamplingRow> rows;             ///< [R]
  const int32_t* logit_row = nullptr;            ///< [R] which row of `logits` each looks at
  std::span<const PenaltyToken> penalty_tokens;  ///< the lists that the rows point into
  std::span<const LogitBias> biases;
  std::span<const uint32_t> token_masks;  ///< [masks, ceil(V / 32)] bit token % 32 of word token / 32: allowed
};

/// Natural logarithms of softmax probabilities of the raw logits. The same token of the same row has the same number wherever
/// it comes.
struct LogProbs {
  float* of_ids = nullptr;         ///< [R] of the ids given, 0 where an id is negative
  float* of_targets = nullptr;     ///< [R] of SamplingRow::target, likewise
  int32_t max_top = 0;             ///< K
  int32_t* top_ids = nullptr;      ///< [R, K] the SamplingRow::top_log_probs most probable, ties by lower id; then -1
  float* top_log_probs = nullptr;  ///< [R, K] then -infinity
};

/// Memory and operators of one rank, executed in program order. "Compute dtype" is float32 or bfloat16, read off the views:
/// all activations of a call share it. Products and sums accumulate in float32.
///
/// Whatever a view or a pointer looks at is memory of the rank, as allocate() gives it: activations, weights, and a step's
/// arrays (slots, ranges, tables, ids, sampling rows with their lists) alike. On a CPU any memory will do. Only what is called
/// `host`, the inverse frequencies of rope_table, and the spans of Partial, CopyRun and Matrix themselves are the caller's own,
/// and may change when the call returns. How the work of a call is cut follows from sizes and strides, so that on a device
/// nothing is read back, and the same calls may be recorded once and replayed over other arrays.
///
/// Sizes are checked; wrong ones are our bug (WEFT_CHECK). T, and every other count of rows, may be 0.
/// Thread: the rank's own. Nothing is allocated after the first call with the largest sizes.
class Ops {
 public:
  virtual ~Ops() = default;

  // --- memory ---------------------------------------------------------------------------------------------------------
  /// Memory of the rank, zeroed, aligned to 64 bytes. Throws SystemError when there is no more.
  virtual Buffer allocate(size_t bytes) = 0;
  virtual void upload(const void* host, View device) = 0;   ///< device view contiguous; `host` is free again on return
  virtual void download(ConstView device, void* host) = 0;  ///< strided views arrive packed, and have when it returns
  /// Returns when everything asked for is done. Throws SystemError where an operator failed meanwhile.
  virtual void synchronize() = 0;
  virtual void copy(std::span<const CopyRun> runs) = 0;
  /// Strided copy, element types equal or float32 <-> bfloat16. Same sizes.
  virtual void copy(ConstView in, View out) = 0;
  /// Runs `body`, or replays what it recorded for `key` before. All arguments of the body's operators have fixed addresses.
  virtual void run_recorded(uint64_t key, const std::function<void()>& body) = 0;

  // --- weights and products -------------------------------------------------------------------------------------------
  /// Takes a host matrix [out, in], row-major, float32 or bfloat16, into the backend's layout with elements of `dtype`.
  virtual std::unique_ptr<Matrix> pack(ConstView matrix, DType dtype) = 0;
  /// Bytes that pack would take for a matrix of this size. Pure.
  virtual size_t packed_bytes(int64_t out, int64_t in, DType dtype) const = 0;
  /// out [T, w.out] = x [T, w.in] w^T + bias. x in w's dtype; out in x's dtype or float32. bias: [w.out] float32, or null.
  virtual void linear(const Matrix& w, ConstView x, const float* bias, View out) = 0;
  /// One matrix per head: out [T, heads, w.out] = x [T, heads, w.in] w[head]^T. All matrices of one size.
  virtual void head_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, View out) = 0;
  /// out [rows, w.out]: grouped row i is x[source[i]] (or x[i] where `gather` is false) times the matrix of its expert.
  virtual void expert_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, const ExpertRows& rows, bool gather,
                             View out) = 0;

  // --- elementwise ----------------------------------------------------------------------------------------------------
  /// out [T, H] = table[ids[t] - first_row], or 0 where the id is outside [first_row, first_row + table rows).
  virtual void embed(const int32_t* ids, ConstView table, int64_t first_row, View out) = 0;
  /// out = x / rms(x) * weight over the last dimension of x [T, H] or [T, heads, D]. weight float32 [last]. out may be x.
  virtual void rms_norm(ConstView x, const float* weight, float eps, View out) = 0;
  /// residual [T, H] += delta, then out = rms_norm(residual). out may be delta.
  virtual void add_rms_norm(ConstView delta, View residual, const float* weight, float eps, View out) = 0;
  /// x [T, H] += y.
  virtual void add(ConstView y, View x) = 0;
  /// out [T, I] = silu(gate_up[:, :I]) * gate_up[:, I:].
  virtual void silu_mul(ConstView gate_up, View out) = 0;

  // --- experts --------------------------------------------------------------------------------------------------------
  /// experts [T, top_k] int32 ascending, weights [T, top_k] float32, from logits [T, experts] float32. Ties go to the lower
  /// id. A NaN logit is never chosen before a number.
  virtual void route(ConstView logits, const Routing& routing, View experts, View weights) = 0;
  /// Fills `rows` from experts [T, top_k]; rows of one expert keep their order.
  virtual void group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows) = 0;
  /// out [T, H] = sum_j weights[t, j] * y[place[t, j]] (+ what `shared` [T, H] holds, unless empty).
  virtual void combine_experts(ConstView y, const ExpertRows& rows, ConstView weights, ConstView shared, View out) = 0;

  // --- attention ------------------------------------------------------------------------------------------------------
  /// cos, sin [T, n] float32 = factor * cos/sin(positions[t] * inv_freq[i]), angles in float64.
  virtual void rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin) = 0;
  virtual void rope_append(const RopeAppend& args) = 0;
  /// Rows of the cache from `slots` [n], or rows 0 to n - 1 where it is null; -1 gives zeros. Of a compute dtype: the numbers,
  /// k [n, kv_heads, k_dim] and v [n, kv_heads, v_dim]. Of uint8: the bytes as they are stored, k [n, kv.k_row_bytes()] and v
  /// [n, kv.v_row_bytes()], to be sent to another rank. v empty: keys only, as for a latent cache.
  virtual void gather_rows(const KvView& kv, const int32_t* slots, View k, View v) = 0;
  virtual void attend(const Attention& args) = 0;
  /// Takes the memory that calls of attend within `limits` work in, so that none of them takes any. May be called for several
  /// kinds of calls.
  virtual void reserve(const AttentionLimits& limits) = 0;
  /// Bytes that reserve takes, where it is the first. Pure.
  virtual size_t reserved_bytes(const AttentionLimits& limits) const = 0;
  /// Joins partials over disjoint keys: lse = log sum exp(lse_p), out = sum exp(lse_p - lse) out_p. NaN and +inf lse count
  /// as -inf; an out whose lse is -inf is never read (it may be garbage). All empty: out = 0, lse = -inf. `out` [T, h, Dv],
  /// `lse` [T, h] (may be empty: not wanted); both may be the storage of any one partial. Each has strides of its own.
  virtual void merge(std::span<const Partial> partials, View out, View lse) = 0;

  // --- sampling -------------------------------------------------------------------------------------------------------
  /// Bytes that `sample` and `log_probs` work in for rows of this size, at most `logit_rows` at once. Pure.
  virtual size_t sampling_workspace_bytes(int64_t logit_rows, int64_t vocab) const = 0;
  /// ids[r] = the next token after row r, chosen as SamplingRow says. It depends on nothing but the row's own logits and
  /// parameters, to the bit. Log probabilities are not its business. Checked: tokens of the lists are in [0, V).
  /// Source of the random numbers: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox).
  virtual void sample(const SampledLogits& in, View workspace, int32_t* ids) = 0;
  /// Sums in float64 on CPU. A NaN counts as -infinity. ids [R].
  virtual void log_probs(const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out) = 0;
};

}  // namespace weft

#pragma once

#include <cstdint>

namespace weft::cpu {

/// The products of attention on bfloat16 pairs, for panels of W = 16 or 32 queries: each of two adjacent elements in 32 bits,
/// two multiply-adds of each lane in one instruction, sums in float32. See attend_panel-inl.h for the layout of a panel.
struct PairKernels {
  /// scores[key][W] = sum over d of keys[key][d] * queries[d][W]: `pairs` pairs of d, `count` keys rounded up to eights.
  void (*score)(const float* queries, const void* const* keys, int64_t count, int64_t pairs, float* scores);
  /// Rounds weights [count][W] to bfloat16, and puts those of keys 2i and 2i + 1 side by side: [ceil(count / 2)][W] pairs, the
  /// last with 0 where count is odd. In place.
  void (*pack_weights)(float* weights, int64_t count);
  /// results[d][W] = results[d][W] * decay[W] + sum over keys of values[key][d] * weights[key][W] for `dims` dims, with packed
  /// weights, and values from pack_value_pairs, v_dim pairs from one row to the next.
  void (*add)(const float* weights, const float* values, int64_t count, int64_t v_dim, int64_t dims, const float* decay,
              float* results);
};

/// For panels of `vectors` (1 or 2) times 16 queries; null where the CPU has no such instruction.
const PairKernels* avx512_bf16_pair_kernels(int vectors);

/// Puts the values of keys 2i and 2i + 1 side by side: [ceil(count / 2)][v_dim] pairs, the last with 0 where count is odd.
/// Requires: the CPU has the instruction.
void pack_value_pairs(const void* const* values, int64_t count, int64_t v_dim, float* packed);

/// The same from float8_e4m3, whose numbers bfloat16 holds exactly; and `count` of them as bfloat16. Require:
/// has_fp8_pairs().
void pack_fp8_value_pairs(const void* const* values, int64_t count, int64_t v_dim, float* packed);
void unpack_fp8_to_bf16(const void* codes, int64_t count, void* out);
/// Whether the CPU has AVX-512 VBMI beside: looks up 64 bytes in a table of 128.
bool has_fp8_pairs();

}  // namespace weft::cpu

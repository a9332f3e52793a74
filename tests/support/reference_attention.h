#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace weft::test {

/// One element of a float32, bfloat16 or float8_e4m3 tensor.
double element(const ConstView& view, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0);

/// Number `d` of a head's key, or value, in row `slot` of the cache: what is stored there times its scale.
double cached_key(const KvView& kv, int64_t slot, int64_t head, int64_t d);
double cached_value(const KvView& kv, int64_t slot, int64_t head, int64_t d);

/// What attention gives, in float64, and how large the terms were that it was summed from: errors are bounded by those.
struct ReferenceAttention {
  std::vector<double> out;      ///< [P, T, h, Dv]
  std::vector<double> lse;      ///< [P, T, h]; -inf where no key was seen
  std::vector<double> terms;    ///< [P, T, h] the largest scale * sum |q_d k_d| over the keys seen
  std::vector<double> largest;  ///< [P, T, h] the largest |v| seen
};

/// softmax(q k * scale) v of each row over exactly the keys in its ranges, one key after the other.
ReferenceAttention reference_attend(const Attention& args);

/// The merge of partials [T, h, Dv], in float64.
struct ReferenceMerge {
  std::vector<double> out;  ///< [T, h, Dv]
  std::vector<double> lse;  ///< [T, h]
};
ReferenceMerge reference_merge(std::span<const Partial> partials);

/// One head after the rotation of its first `rotary` elements by the angles position * inv_freq[i], times `factor`.
std::vector<double> reference_rotate(std::span<const double> head, int64_t position, std::span<const double> inv_freq,
                                     double factor, bool interleaved);

}  // namespace weft::test

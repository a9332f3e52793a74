#pragma once

#include <cstdint>

namespace weft::cpu {

// What is done to whole rows of logits, with vectors. NaN is no number and never counts.

/// The lowest index of the largest number, -1 where there is none.
int32_t index_of_largest(const float* x, int64_t n);

/// The largest number, and the smallest above -infinity; -infinity both where there is none.
struct LogitRange {
  float largest, smallest;
};
LogitRange range_of(const float* x, int64_t n);

/// Sum of exp(x[i] - largest), in an order that follows from n alone. `largest` is not -infinity.
double sum_of_exponentials(const float* x, int64_t n, float largest);

/// How logits become weights: w = exp((x - largest) / temperature), 0 where the exponent is below `lowest_exponent` (negative,
/// finite). And how they are dealt into `buckets` buckets, larger logits first: (largest - x) * buckets_per_logit rounded down.
struct Weighing {
  float largest = 0;
  double inverse_temperature = 1;
  double lowest_exponent = 0;
  float buckets_per_logit = 1;  ///< positive and finite
  int32_t buckets = 1;
};

/// Rows are worked on in pieces that stay in the first-level cache beside what is made of them.
constexpr int64_t kLogitPiece = 512;
/// Of n <= kLogitPiece logits, to arrays of kLogitPiece. The weight of a logit depends on that logit alone.
void weigh(const float* x, int64_t n, const Weighing& how, double* weights);
void weigh_and_deal(const float* x, int64_t n, const Weighing& how, double* weights, int32_t* buckets);

/// Writes to an array of kLogitPiece + 1 the indices of those of n <= kLogitPiece logits that are dealt into `bucket` and are
/// at least `smallest`, ascending; returns how many.
int64_t find_in_bucket(const float* x, int64_t n, const Weighing& how, int32_t bucket, float smallest, int32_t* indices);

/// Likewise of those that are larger than `bound`.
int64_t find_larger(const float* x, int64_t n, float bound, int32_t* indices);

}  // namespace weft::cpu

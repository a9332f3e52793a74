// Tokens from logits, a block for each row, and log probabilities.
//
// Weights are integers, exp((x - largest) / temperature) times a power of two that lets a vocabulary's sum fit into 63 bits:
// such sums are the same in whatever order threads add them, so a token depends on its row alone. At least 44 bits behind the
// point are kept for 2^18 tokens; what is lighter than that is never drawn.

#include "ops/cuda/elements.cuh"
#include "ops/cuda/params.h"
#include "ops/uniform.h"

namespace weft::cuda {
namespace {

using u64 = unsigned long long;  // what atomicAdd takes

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kBuckets = 2048;
// Tokens this far below the most probable one share the last bucket.
constexpr double kBucketedExponents = 40;

template <typename T, typename Join>
__device__ T block_join(T value, Join join) {
  __shared__ T shared[kWarps];
  for (int apart = kWarp / 2; apart > 0; apart /= 2) value = join(value, __shfl_xor_sync(~0u, value, apart));
  __syncthreads();  // what the call before left has been read
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all = shared[0];
  for (int w = 1; w < kWarps; ++w) all = join(all, shared[w]);
  return all;
}
template <typename T>
__device__ T block_least(T value) {
  return block_join(value, [](T a, T b) { return b < a ? b : a; });
}
__device__ float block_largest(float value) {
  return block_join(value, [](float a, float b) { return b > a ? b : a; });
}

/// Orders logits by preference, the larger first. Together with the id behind it, it orders tokens.
__device__ uint32_t preference_key(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  return (bits >> 31) != 0 ? bits : ~(bits | 0x80000000u);
}
__device__ u64 preference(float logit, int64_t token) {
  return u64{preference_key(logit)} << 32 | static_cast<uint32_t>(token);
}

/// Calls body(logit, i) for all of a row's logits, four loads at a time. Each thread calls it equally often, also for some i
/// from `vocab` on, with a logit of -infinity, so that body may have a warp act together.
template <typename Body>
__device__ void for_each_logit(const float* x, int64_t vocab, Body body) {
  constexpr int kBatch = 4;
  for (int64_t first = 0; first < vocab; first += kBatch * kThreads) {
    float logits[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int64_t i = first + n * kThreads + threadIdx.x;
      logits[n] = i < vocab ? x[i] : -kInfinity;
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) body(logits[n], first + n * kThreads + threadIdx.x);
  }
}

// --- what comes before the temperature --------------------------------------------------------------------------------

__device__ bool is_allowed(const SampleParams& p, const SamplingRow& row, int64_t token) {
  if (row.allowed_mask < 0) return true;
  const int64_t words = (p.vocab + 31) / 32;
  return (p.token_masks[row.allowed_mask * words + token / 32] >> (token % 32) & 1) != 0;
}

/// The logits of a row after mask, biases and penalties, in `changed` unless nothing changes them. Each product and sum is
/// rounded by itself, as on a CPU.
__device__ const float* changed_logits(const SampleParams& p, const SamplingRow& row, const float* raw, float* changed) {
  if (!row.changes_logits()) return raw;
  for (int64_t i = threadIdx.x; i < p.vocab; i += kThreads) changed[i] = is_allowed(p, row, i) ? raw[i] : -kInfinity;
  __syncthreads();
  for (int i = threadIdx.x; i < row.biases.count; i += kThreads) {
    const LogitBias entry = p.biases[row.biases.begin + i];
    changed[entry.token] += entry.bias;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < row.penalty_tokens.count; i += kThreads) {
    const PenaltyToken entry = p.penalty_tokens[row.penalty_tokens.begin + i];
    float logit = changed[entry.token];
    if (entry.generated > 0 || entry.in_prompt > 0)
      logit = logit > 0 ? __fdiv_rn(logit, row.repetition_penalty) : __fmul_rn(logit, row.repetition_penalty);
    if (entry.generated > 0) {
      logit = __fsub_rn(logit, __fmul_rn(row.frequency_penalty, static_cast<float>(entry.generated)));
      logit = __fsub_rn(logit, row.presence_penalty);
    }
    changed[entry.token] = logit;
  }
  __syncthreads();
  return changed;
}

/// The token of a row that leaves nothing above -infinity: the lowest allowed id, of those whose logit is a number if there
/// are.
__device__ int last_resort(const SampleParams& p, const SamplingRow& row, const float* raw) {
  constexpr int kNone = 0x7fffffff;
  int number = kNone, any = kNone;
  for (int64_t i = threadIdx.x; i < p.vocab; i += kThreads) {
    if (!is_allowed(p, row, i)) continue;
    const int token = static_cast<int>(i);
    any = min(any, token);
    if (!isnan(raw[i])) number = min(number, token);
  }
  number = block_least(number);
  any = block_least(any);
  return number != kNone ? number : any != kNone ? any : 0;
}

__device__ int greedy(const SampleParams& p, const SamplingRow& row, const float* x, const float* raw) {
  u64 best = ~u64{0};
  for_each_logit(x, p.vocab, [&](float logit, int64_t i) {
    if (logit > -kInfinity) best = min(best, preference(logit, i));
  });
  best = block_least(best);
  return best == ~u64{0} ? last_resort(p, row, raw) : static_cast<int>(best & 0xffffffffu);
}

// --- drawing ----------------------------------------------------------------------------------------------------------

/// What one block works in, all [vocab].
struct SampleScratch {
  u64* weights;
  float* logits;  ///< changed ones
  int32_t* list;  ///< tokens of one bucket
};

/// Sums of the tokens of each bucket.
struct Histogram {
  u64 weight[kBuckets];
  unsigned count[kBuckets];
};

/// Where a beginning of the tokens in the order of preference ends: behind the first `ties` ones of key `key`.
struct End {
  uint32_t key = ~0u;
  int64_t ties = 0;
  u64 tie_weight = 0;  ///< of each
  u64 weight = 0;      ///< of all that is kept
};

/// The tokens of one row in the order of preference, of which min_p, top_k and top_p keep a beginning. Nothing is sorted:
/// tokens are counted in buckets, first by their distance from the largest logit and then, within the bucket that holds what is
/// searched, by the digits of their keys.
class Draw {
 public:
  __device__ Draw(const float* x, int64_t vocab, float largest, float smallest, const SamplingRow& row,
                  const SampleScratch& scratch, Histogram& histogram)
      : x_(x), vocab_(vocab), largest_(largest), weights_(scratch.weights), list_(scratch.list), histogram_(histogram) {
    const double temperature = row.temperature, inverse = 1 / temperature;
    const double lowest = fmax(-708.0, row.min_p > 0 ? log(static_cast<double>(row.min_p)) : -kInfinity);
    const double span = fmin(static_cast<double>(largest) - smallest, fmin(-lowest, kBucketedExponents) * temperature);
    buckets_per_logit_ = span > 1e-30 ? static_cast<float>(kBuckets / span) : 1e30f;
    const int bits = 64 - __clzll(vocab);
    const double unit = ldexp(1.0, min(52, 62 - bits));
    u64 sum = 0;
    for_each_logit(x, vocab, [&](float logit, int64_t i) {
      if (i >= vocab) return;
      const double exponent = logit == largest ? 0 : (static_cast<double>(logit) - largest) * inverse;
      weights_[i] = exponent >= lowest ? __double2ull_rn(exp(exponent) * unit) : 0;
      sum += weights_[i];
    });
    end_.weight = block_join(sum, [](u64 a, u64 b) { return a + b; });
  }

  /// Keeps the first `count` of what is kept.
  __device__ void keep_count(int64_t count) {
    const Found found = find(false, static_cast<u64>(count));
    if (found.ties > 0) end_at(found);
  }
  /// Keeps the fewest that have this share of the weight of what is kept, at least one.
  __device__ void keep_weight(double share) {
    const u64 wanted = __double2ull_ru(share * static_cast<double>(end_.weight));
    end_at(find(true, min(max(wanted, u64{1}), end_.weight)));
  }
  /// The token that the random number u of (0, 1) falls on.
  __device__ int token(double u) {
    const u64 wanted = __double2ull_rd(u * static_cast<double>(end_.weight)) + 1;
    const Found found = find(true, min(wanted, end_.weight));
    return token_of(found.key, found.ties);
  }

 private:
  /// The token at which a sum over the tokens reaches a target.
  struct Found {
    uint32_t key = 0;
    int64_t ties = 0;  ///< which of its key, counted from 1; 0: the sum ends before
    u64 tie_weight = 0;
    u64 weight_before = 0;  ///< of all tokens of keys before
  };
  /// A bucket, and what lies before it.
  struct Place {
    int bucket;  ///< -1: none
    u64 weight_before, count_before;
  };

  __device__ int bucket_of(float x) const {
    const float below = x < largest_ ? largest_ - x : 0.0f;
    return static_cast<int>(fminf(below * buckets_per_logit_, static_cast<float>(kBuckets - 1)));
  }

  __device__ void clear_histogram() {
    __syncthreads();
    for (int b = threadIdx.x; b < kBuckets; b += kThreads) histogram_.weight[b] = 0, histogram_.count[b] = 0;
    __syncthreads();
  }
  /// Adds a token's weight to a bucket; bucket -1 takes nothing. All lanes of a warp call it together.
  __device__ void put(int bucket, u64 weight) {
    int same = 0;
    __match_all_sync(~0u, bucket, &same);
    if (same == 0) {
      if (bucket < 0) return;
      atomicAdd(&histogram_.weight[bucket], weight);
      atomicAdd(&histogram_.count[bucket], 1u);
    } else if (bucket >= 0) {  // flat logits: one addition for all
      weight = warp_sum(weight);
      if (threadIdx.x % kWarp == 0) atomicAdd(&histogram_.weight[bucket], weight), atomicAdd(&histogram_.count[bucket], 32u);
    }
  }
  /// What is kept of the last key, which is not dealt token by token.
  template <typename Digit>
  __device__ void put_ties(Digit digit) {
    __syncthreads();
    if (threadIdx.x == 0 && end_.ties > 0) {
      const uint32_t bits = (end_.key >> 31) != 0 ? end_.key : ~end_.key & 0x7fffffffu;
      const int bucket = digit(__uint_as_float(bits), end_.key);
      if (bucket >= 0) {
        histogram_.weight[bucket] += static_cast<u64>(end_.ties) * end_.tie_weight;
        histogram_.count[bucket] += static_cast<unsigned>(end_.ties);
      }
    }
    __syncthreads();
  }

  /// Deals the tokens that are kept into buckets by their logits.
  __device__ void deal_all() {
    clear_histogram();
    for_each_logit(x_, vocab_, [&](float logit, int64_t i) {
      const u64 weight = i < vocab_ ? weights_[i] : 0;
      put(weight > 0 && preference_key(logit) < end_.key ? bucket_of(logit) : -1, weight);
    });
    put_ties([&](float logit, uint32_t) { return bucket_of(logit); });
  }

  /// Lists the tokens of one bucket, in any order, and returns how many there are.
  __device__ int list_bucket(int bucket) {
    __shared__ int listed;
    __syncthreads();
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    for_each_logit(x_, vocab_, [&](float logit, int64_t i) {
      const bool here = i < vocab_ && bucket_of(logit) == bucket && weights_[i] > 0 && preference_key(logit) < end_.key;
      const unsigned in_warp = __ballot_sync(~0u, here);
      if (in_warp == 0) return;
      const int lane = threadIdx.x % kWarp;
      int at = lane == 0 ? atomicAdd(&listed, __popc(in_warp)) : 0;
      at = __shfl_sync(~0u, at, 0) + __popc(in_warp & ((1u << lane) - 1));
      if (here) list_[at] = static_cast<int32_t>(i);
    });
    __syncthreads();
    return listed;
  }

  /// Deals the tokens of the list into buckets: digit(logit, key), or -1.
  template <typename Digit>
  __device__ void deal_list(int count, Digit digit) {
    clear_histogram();
    for (int first = 0; first < count; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      const int token = i < count ? list_[i] : 0;
      put(i < count ? digit(x_[token], preference_key(x_[token])) : -1, weights_[token]);
    }
    put_ties(digit);
  }

  /// The first bucket at which the sum of weights, or of counts, is at least `target`.
  __device__ Place place(bool by_weight, u64 target) const {
    __shared__ Place found;
    if (threadIdx.x < kWarp) {
      const Place at = place_by_warp(by_weight, target);
      if (threadIdx.x == 0) found = at;
    }
    __syncthreads();
    return found;
  }
  __device__ Place place_by_warp(bool by_weight, u64 target) const {
    constexpr int kEach = kBuckets / kWarp;
    const int lane = threadIdx.x;
    u64 weight = 0, count = 0;
    for (int b = lane * kEach; b < (lane + 1) * kEach; ++b) weight += histogram_.weight[b], count += histogram_.count[b];
    const u64 own_weight = weight, own_count = count;
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const u64 more_weight = __shfl_up_sync(~0u, weight, apart), more_count = __shfl_up_sync(~0u, count, apart);
      if (lane >= apart) weight += more_weight, count += more_count;
    }
    const unsigned reached = __ballot_sync(~0u, (by_weight ? weight : count) >= target);
    if (reached == 0) return {-1, 0, 0};
    const int from = __ffs(static_cast<int>(reached)) - 1;
    Place at{from * kEach, __shfl_sync(~0u, weight - own_weight, from), __shfl_sync(~0u, count - own_count, from)};
    for (;; ++at.bucket) {
      const u64 here_weight = histogram_.weight[at.bucket], here_count = histogram_.count[at.bucket];
      if ((by_weight ? at.weight_before + here_weight : at.count_before + here_count) >= target) return at;
      at.weight_before += here_weight;
      at.count_before += here_count;
    }
  }

  __device__ Found find(bool by_weight, u64 target) {
    deal_all();
    Place at = place(by_weight, target);
    if (at.bucket < 0) return {};
    const int bucket = at.bucket;
    u64 weight_before = at.weight_before, count_before = at.count_before;
    listed_ = list_bucket(bucket);
    uint32_t prefix = 0;
    for (int shift = 22; shift >= 0; shift -= 11) {  // digits of 10, 11 and 11 bits
      deal_list(listed_, [&](float logit, uint32_t key) {
        return bucket_of(logit) == bucket && (shift == 22 || key >> (shift + 11) == prefix)
                   ? static_cast<int>(key >> shift & (shift == 22 ? 1023u : 2047u))
                   : -1;
      });
      at = place(by_weight, target - (by_weight ? weight_before : count_before));
      weight_before += at.weight_before;
      count_before += at.count_before;
      prefix = prefix << (shift == 22 ? 10 : 11) | static_cast<uint32_t>(at.bucket);
    }
    Found found{.key = prefix, .weight_before = weight_before};
    found.tie_weight = histogram_.weight[at.bucket] / histogram_.count[at.bucket];
    const u64 missing = target - (by_weight ? weight_before : count_before);
    found.ties = static_cast<int64_t>(by_weight ? (missing + found.tie_weight - 1) / found.tie_weight : missing);
    return found;
  }

  __device__ void end_at(const Found& found) {
    end_ = {found.key, found.ties, found.tie_weight, found.weight_before + static_cast<u64>(found.ties) * found.tie_weight};
  }

  /// The token that is number `number` of those with this key, counted from 1 in the order of ids.
  __device__ int token_of(uint32_t key, int64_t number) const {
    __shared__ int counts[kWarps], chosen;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (key != end_.key) {  // then all of them are listed, and mostly there is one
      int own = 0, token = 0;
      for (int i = threadIdx.x; i < listed_; i += kThreads)
        if (preference_key(x_[list_[i]]) == key) ++own, token = list_[i];
      if (block_join(own, [](int a, int b) { return a + b; }) == 1) {
        if (own == 1) chosen = token;
        __syncthreads();
        return chosen;
      }
    }
    int64_t before = 0;
    for (int64_t first = 0; first < vocab_ && before < number; first += kThreads) {
      const int64_t i = first + threadIdx.x;
      const bool match = i < vocab_ && weights_[i] > 0 && preference_key(x_[i]) == key;
      const unsigned in_warp = __ballot_sync(~0u, match);
      __syncthreads();  // the counts of the round before have been read
      if (lane == 0) counts[warp] = __popc(in_warp);
      __syncthreads();
      int64_t place = before + __popc(in_warp & ((1u << lane) - 1)) + 1;
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) place += counts[w];
        before += counts[w];
      }
      if (match && place == number) chosen = static_cast<int>(i);
    }
    __syncthreads();
    return chosen;
  }

  const float* x_;
  int64_t vocab_;
  float largest_, buckets_per_logit_;
  u64* weights_;
  int32_t* list_;
  int listed_ = 0;
  Histogram& histogram_;
  End end_;
};

__device__ int sample_row(const SampleParams& p, const SamplingRow& row, const float* raw, const SampleScratch& scratch,
                          Histogram& histogram) {
  const float* x = changed_logits(p, row, raw, scratch.logits);
  if (row.temperature == 0) return greedy(p, row, x, raw);
  float largest = -kInfinity, smallest = kInfinity;
  for_each_logit(x, p.vocab, [&](float logit, int64_t) {
    if (!(logit > -kInfinity)) return;
    largest = fmaxf(largest, logit);
    smallest = fminf(smallest, logit);
  });
  largest = block_largest(largest);
  smallest = block_least(smallest);
  if (largest == -kInfinity) return last_resort(p, row, raw);
  Draw draw(x, p.vocab, largest, smallest, row, scratch, histogram);
  if (row.top_k > 0 && row.top_k < p.vocab) draw.keep_count(row.top_k);
  if (row.top_p < 1) draw.keep_weight(row.top_p);
  return draw.token(uniform(row.seed, row.choice, row.position));
}

__global__ void __launch_bounds__(kThreads) sample(SampleParams p, int64_t scratch_bytes) {
  __shared__ Histogram histogram;
  const int64_t padded = (p.vocab + 1) / 2 * 2;
  auto* weights = reinterpret_cast<u64*>(p.scratch + blockIdx.x * scratch_bytes);
  auto* logits = reinterpret_cast<float*>(weights + padded);
  const SampleScratch scratch{weights, logits, reinterpret_cast<int32_t*>(logits + padded)};
  for (int64_t r = blockIdx.x; r < p.count; r += gridDim.x) {
    const int id = sample_row(p, p.rows[r], p.logits + p.logit_row[r] * p.logits_stride, scratch, histogram);
    __syncthreads();
    if (threadIdx.x == 0) p.ids[r] = id;
  }
}

// --- log probabilities ------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) log_probs(LogProbParams p) {
  const int64_t r = blockIdx.x;
  const float* x = p.logits + p.logit_row[r] * p.logits_stride;
  float largest = -kInfinity;
  for (int64_t i = threadIdx.x; i < p.vocab; i += kThreads) largest = x[i] > largest ? x[i] : largest;
  largest = block_largest(largest);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < p.vocab && largest > -kInfinity; i += kThreads) {
    if (x[i] > -kInfinity) sum += x[i] == largest ? 1 : exp(static_cast<double>(x[i]) - largest);
  }
  sum = block_join(sum, [](double a, double b) { return a + b; });
  const double log_sum = log(sum);
  const auto log_prob = [&](float logit) {
    if (!(logit > -kInfinity)) return -kInfinity;
    const double below = logit == largest ? 0 : static_cast<double>(logit) - largest;
    return static_cast<float>(below - log_sum);
  };
  const auto of = [&](int32_t token) { return token < 0 ? 0.0f : log_prob(x[token]); };
  const SamplingRow& row = p.rows[r];
  if (threadIdx.x == 0) {
    p.of_ids[r] = of(p.ids[r]);
    p.of_targets[r] = of(row.target);
  }
  // The best, then the best behind it, and so on.
  u64 last = 0;
  for (int k = 0; k < p.max_top; ++k) {
    u64 best = ~u64{0};
    for (int64_t i = threadIdx.x; i < p.vocab && k < row.top_log_probs && last != ~u64{0}; i += kThreads) {
      if (!(x[i] > -kInfinity)) continue;
      const u64 key = preference(x[i], i);
      if (k == 0 || key > last) best = min(best, key);
    }
    last = block_least(best);
    if (threadIdx.x != 0) continue;
    const bool found = last != ~u64{0};
    p.top_ids[r * p.max_top + k] = found ? static_cast<int32_t>(last & 0xffffffffu) : -1;
    p.top_log_probs[r * p.max_top + k] = found ? log_prob(x[last & 0xffffffffu]) : -kInfinity;
  }
}

}  // namespace

cudaError_t launch_sample(const SampleParams& p, size_t scratch_bytes, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(p.count < p.blocks ? p.count : p.blocks);
  sample<<<blocks, kThreads, 0, stream>>>(p, static_cast<int64_t>(scratch_bytes));
  return cudaGetLastError();
}

cudaError_t launch_log_probs(const LogProbParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  log_probs<<<static_cast<unsigned>(p.count), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace weft::cuda

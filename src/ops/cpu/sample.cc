#include "ops/cpu/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ops/cpu/logits.h"
#include "ops/cpu/row_blocks.h"
#include "ops/uniform.h"

namespace weft::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A bucket of a 150k vocabulary then holds some hundred tokens where they lie densest: little to sort. 2048 buckets are 32 KiB.
constexpr int32_t kBuckets = 2048;
// Tokens this far below the most probable one share the last bucket: all of a vocabulary's together weigh less than one
// rounding of a float64 sum, so that it hardly ever matters in which order they come.
constexpr double kBucketedExponents = 40;

/// Tokens whose logits are about equal.
struct Bucket {
  double weight = 0;
  int64_t count = 0;  ///< of those that have weight: they come first
};

/// What one thread works in.
struct Scratch {
  float* logits;   ///< [V] changed logits
  uint64_t* keys;  ///< [V] of the tokens of one bucket
  Bucket* buckets;

  static size_t bytes(int64_t vocab) {
    return padded(static_cast<size_t>(vocab) * sizeof(float)) + padded(static_cast<size_t>(vocab) * sizeof(uint64_t)) +
           kBuckets * sizeof(Bucket);
  }
  static Scratch at(std::byte* memory, int64_t vocab) {
    std::byte* keys = memory + padded(static_cast<size_t>(vocab) * sizeof(float));
    std::byte* buckets = keys + padded(static_cast<size_t>(vocab) * sizeof(uint64_t));
    return {.logits = reinterpret_cast<float*>(memory),
            .keys = reinterpret_cast<uint64_t*>(keys),
            .buckets = reinterpret_cast<Bucket*>(buckets)};
  }

 private:
  static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
};

// --- what comes before the temperature --------------------------------------------------------------------------------

template <typename T>
std::span<const T> entries(std::span<const T> list, PlanSlice slice) {
  return list.subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.count));
}

std::span<const uint32_t> mask_of(const SampledLogits& in, const SamplingRow& row) {
  const auto words = static_cast<size_t>((in.logits.size(1) + 31) / 32);
  return in.token_masks.subspan(static_cast<size_t>(row.allowed_mask) * words, words);
}

bool is_allowed(std::span<const uint32_t> mask, int64_t token) {
  return (mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
}

void copy_allowed(const float* x, int64_t n, std::span<const uint32_t> mask, float* out) {
  for (int64_t begin = 0; begin < n; begin += 32) {
    const int64_t end = std::min(n, begin + 32);
    const uint32_t word = mask[static_cast<size_t>(begin / 32)];
    if (word == 0) {
      std::fill(out + begin, out + end, -kInfinity);
    } else if (word == ~uint32_t{0}) {
      std::copy(x + begin, x + end, out + begin);
    } else {
      for (int64_t i = begin; i < end; ++i) out[i] = (word >> (i - begin) & 1) != 0 ? x[i] : -kInfinity;
    }
  }
}

/// The logits of a row after mask, biases and penalties, in `out` unless nothing changes them.
const float* changed_logits(const SampledLogits& in, const SamplingRow& row, const float* x, float* out) {
  if (!row.changes_logits()) return x;
  const int64_t n = in.logits.size(1);
  if (row.allowed_mask >= 0)
    copy_allowed(x, n, mask_of(in, row), out);
  else
    std::copy(x, x + n, out);
  for (const LogitBias& entry : entries(in.biases, row.biases)) {
    WEFT_CHECK(entry.token >= 0 && entry.token < n) << "token " << entry.token << " of " << n;
    out[entry.token] += entry.bias;
  }
  for (const PenaltyToken& entry : entries(in.penalty_tokens, row.penalty_tokens)) {
    WEFT_CHECK(entry.token >= 0 && entry.token < n) << "token " << entry.token << " of " << n;
    float& logit = out[entry.token];
    if (entry.generated > 0 || entry.in_prompt > 0)
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    if (entry.generated > 0) {
      logit -= row.frequency_penalty * static_cast<float>(entry.generated);
      logit -= row.presence_penalty;
    }
  }
  return out;
}

/// The token of a row that leaves nothing above -infinity.
int32_t last_resort(const SampledLogits& in, const SamplingRow& row, const float* x) {
  int32_t first = -1;
  for (int32_t i = 0; i < in.logits.size(1); ++i) {
    if (row.allowed_mask >= 0 && !is_allowed(mask_of(in, row), i)) continue;
    if (!std::isnan(x[i])) return i;
    if (first < 0) first = i;
  }
  return std::max(first, 0);
}

// --- drawing ----------------------------------------------------------------------------------------------------------

/// Orders tokens by preference: the larger logit first, the lower id on a tie.
uint64_t preference_key(float logit, int64_t token) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes 0
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | static_cast<uint64_t>(token);
}
float logit_of(uint64_t key) {
  const uint32_t ascending = ~static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ascending >> 31) != 0 ? ascending & 0x7fffffffu : ~ascending);
}
int32_t token_of(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); }

/// The tokens of one row in the order of preference, of which min_p, top_k and top_p keep a beginning.
///
/// No more than needed is ever sorted: tokens are dealt into buckets by their logits, and a search over the buckets' sums finds
/// the one that holds the end of what is kept, or the token that is drawn. Only that one is put in order.
class Draw {
 public:
  Draw(const float* x, int64_t n, LogitRange range, const SamplingRow& row, const Scratch& scratch)
      : x_(x), n_(n), keys_(scratch.keys), buckets_(scratch.buckets) {
    const double temperature = row.temperature;
    // Weights below exp(-708) are 0: no sum could tell.
    const double lowest = std::max(-708.0, row.min_p > 0 ? std::log(static_cast<double>(row.min_p)) : -kInfinity);
    const double span =
        std::min(static_cast<double>(range.largest) - range.smallest, std::min(-lowest, kBucketedExponents) * temperature);
    how_ = {.largest = range.largest,
            .inverse_temperature = 1 / temperature,
            .lowest_exponent = lowest,
            .buckets_per_logit = span > 1e-30 ? static_cast<float>(kBuckets / span) : 1e30f,
            .buckets = kBuckets};
    smallest_ = range.largest == kInfinity ? kInfinity : range.smallest;
    deal();
  }

  /// Keeps the first `count` of what is kept.
  void keep_count(int64_t count) {
    double weight = 0;
    for (int32_t b = 0; b <= last_; ++b) {
      if (count <= buckets_[b].count) return end_at(b, count, weight);
      count -= buckets_[b].count;
      weight += buckets_[b].weight;
    }
  }

  /// Keeps the fewest that have this share of the weight of what is kept, at least one.
  void keep_weight(double share) {
    const double wanted = share * weight_;
    double weight = 0;
    for (int32_t b = 0; b <= last_; ++b) {
      if (weight + buckets_[b].weight >= wanted) {
        double sum = weight;
        return end_at(b, walk(b, [&](double w) { return (sum += w) >= wanted; }) + 1, weight);
      }
      weight += buckets_[b].weight;
    }
  }

  /// The token that the random number u of (0, 1) falls on.
  int32_t token(double u) {
    const double wanted = u * weight_;
    double weight = 0;
    int32_t chosen = 0;  // the last bucket with weight, should rounding leave the sum short of what is wanted
    for (int32_t b = 0; b <= last_; ++b) {
      if (buckets_[b].weight == 0) continue;
      chosen = b;
      if (weight + buckets_[b].weight > wanted) break;
      weight += buckets_[b].weight;
    }
    int64_t at = 0, with_weight = 0;
    const int64_t stopped = walk(chosen, [&](double w) {
      if (w > 0) with_weight = at;
      ++at;
      return (weight += w) > wanted;
    });
    const auto keys = sorted(chosen);
    return token_of(keys[static_cast<size_t>(stopped < static_cast<int64_t>(keys.size()) ? stopped : with_weight)]);
  }

 private:
  void deal() {
    std::fill(buckets_, buckets_ + kBuckets, Bucket{});
    double weights[kLogitPiece];
    int32_t buckets[kLogitPiece];
    for (int64_t begin = 0; begin < n_; begin += kLogitPiece) {
      const int64_t n = std::min(kLogitPiece, n_ - begin);
      weigh_and_deal(x_ + begin, n, how_, weights, buckets);
      for (int64_t i = 0; i < n; ++i) {
        if (weights[i] == 0) continue;
        Bucket& bucket = buckets_[buckets[i]];
        bucket.weight += weights[i];
        ++bucket.count;
      }
    }
    for (int32_t b = 0; b < kBuckets; ++b) weight_ += buckets_[b].weight;
  }

  /// The tokens of a bucket in the order of preference, as far as they are kept.
  std::span<const uint64_t> sorted(int32_t bucket) {
    if (bucket != sorted_) {
      sorted_ = bucket;
      sorted_count_ = 0;
      int32_t found[kLogitPiece + 1];
      for (int64_t begin = 0; begin < n_; begin += kLogitPiece) {
        const int64_t n = std::min(kLogitPiece, n_ - begin);
        const int64_t count = find_in_bucket(x_ + begin, n, how_, bucket, smallest_, found);
        for (int64_t i = 0; i < count; ++i) keys_[sorted_count_++] = preference_key(x_[begin + found[i]], begin + found[i]);
      }
      if (!std::is_sorted(keys_, keys_ + sorted_count_)) std::sort(keys_, keys_ + sorted_count_);
    }
    return {keys_, static_cast<size_t>(bucket == last_ ? std::min(sorted_count_, kept_in_last_) : sorted_count_)};
  }

  /// Goes over the weights of a bucket in order until `stop` says so, and returns where that was, or the number of tokens.
  template <typename Stop>
  int64_t walk(int32_t bucket, Stop stop) {
    const std::span<const uint64_t> keys = sorted(bucket);
    constexpr size_t kPiece = 32;
    float logits[kPiece];
    double weights[kLogitPiece];
    for (size_t begin = 0; begin < keys.size(); begin += kPiece) {
      const size_t n = std::min(kPiece, keys.size() - begin);
      for (size_t i = 0; i < n; ++i) logits[i] = logit_of(keys[begin + i]);
      weigh(logits, static_cast<int64_t>(n), how_, weights);
      for (size_t i = 0; i < n; ++i)
        if (stop(weights[i])) return static_cast<int64_t>(begin + i);
    }
    return static_cast<int64_t>(keys.size());
  }

  /// Nothing after the first `count` tokens of `bucket` is kept; `before` is the weight of the buckets before it.
  void end_at(int32_t bucket, int64_t count, double before) {
    const int64_t bound = std::min(count, static_cast<int64_t>(sorted(bucket).size()));
    last_ = bucket;
    kept_in_last_ = bound;
    double weight = 0;
    walk(bucket, [&](double w) {
      weight += w;
      return false;
    });
    buckets_[bucket] = {.weight = weight, .count = bound};
    weight_ = before + weight;
  }

  const float* x_;
  int64_t n_;
  uint64_t* keys_;
  Bucket* buckets_;
  Weighing how_;
  float smallest_ = 0;
  int32_t sorted_ = -1;  ///< bucket whose tokens are in keys_
  int64_t sorted_count_ = 0;
  int32_t last_ = kBuckets - 1;                                 ///< bucket that holds the end of what is kept
  int64_t kept_in_last_ = std::numeric_limits<int64_t>::max();  ///< tokens of it that are kept
  double weight_ = 0;                                           ///< of all that is kept
};

int32_t sample_row(const SampledLogits& in, const SamplingRow& row, const float* raw, const Scratch& scratch) {
  const int64_t n = in.logits.size(1);
  const float* x = changed_logits(in, row, raw, scratch.logits);
  if (row.temperature == 0) {
    const int32_t best = index_of_largest(x, n);
    return best < 0 || x[best] == -kInfinity ? last_resort(in, row, raw) : best;
  }
  const LogitRange range = range_of(x, n);
  if (range.largest == -kInfinity) return last_resort(in, row, raw);
  Draw draw(x, n, range, row, scratch);
  if (row.top_k > 0 && row.top_k < n) draw.keep_count(row.top_k);
  if (row.top_p < 1) draw.keep_weight(row.top_p);
  return draw.token(uniform(row.seed, row.choice, row.position));
}

// --- log probabilities ------------------------------------------------------------------------------------------------

/// Turns a logit of one row into its log probability.
struct Normalizer {
  double largest = 0, log_sum = 0;

  static Normalizer of(const float* x, int64_t n) {
    const float most = range_of(x, n).largest;
    return {.largest = most, .log_sum = most == -kInfinity ? 0 : std::log(sum_of_exponentials(x, n, most))};
  }
  float log_prob(float logit) const {
    if (!(logit > -kInfinity)) return -kInfinity;
    const double below = logit == largest ? 0 : logit - largest;  // also where both are infinite
    return static_cast<float>(below - log_sum);
  }
};

/// Writes the k largest logits above -infinity and their ids, the lower id first on a tie; -1 and -infinity where there are
/// fewer.
void find_top(const float* x, int64_t n, int32_t k, int32_t* ids, float* logits) {
  std::fill(ids, ids + k, -1);
  std::fill(logits, logits + k, -kInfinity);
  int32_t found[kLogitPiece + 1];
  for (int64_t begin = 0; k > 0 && begin < n; begin += kLogitPiece) {
    const int64_t count = find_larger(x + begin, std::min(kLogitPiece, n - begin), logits[k - 1], found);
    for (int64_t i = 0; i < count; ++i) {
      const auto token = static_cast<int32_t>(begin + found[i]);
      const float logit = x[token];
      if (!(logit > logits[k - 1])) continue;
      // Later tokens have higher ids: behind those of the same logit.
      const auto at = std::upper_bound(logits, logits + k, logit, std::greater<>()) - logits;
      std::copy_backward(logits + at, logits + k - 1, logits + k);
      std::copy_backward(ids + at, ids + k - 1, ids + k);
      logits[at] = logit;
      ids[at] = token;
    }
  }
}

const float* logits_of(const SampledLogits& in, size_t row) {
  return reinterpret_cast<const float*>(row_at(in.logits, in.logit_row[row]));
}

}  // namespace

size_t sampling_workspace_bytes(const Pool& pool, int64_t logit_rows, int64_t vocab) {
  return std::max(static_cast<size_t>(pool.threads()) * Scratch::bytes(vocab),
                  static_cast<size_t>(logit_rows) * sizeof(Normalizer));
}

void sample(Pool& pool, const SampledLogits& in, View workspace, int32_t* ids) {
  const int64_t vocab = in.logits.size(1);
  const size_t each = Scratch::bytes(vocab);
  auto* memory = static_cast<std::byte*>(workspace.data());
  pool.run(static_cast<int64_t>(in.rows.size()), [&](int64_t r, int thread) {
    const auto i = static_cast<size_t>(r);
    const Scratch scratch = Scratch::at(memory + static_cast<size_t>(thread) * each, vocab);
    ids[i] = sample_row(in, in.rows[i], logits_of(in, i), scratch);
  });
}

void log_probs(Pool& pool, const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out) {
  const int64_t vocab = in.logits.size(1);
  auto* normalizers = static_cast<Normalizer*>(static_cast<void*>(workspace.data()));
  for_each_row(pool, in.logits.size(0), vocab, [&](int64_t row) {
    normalizers[row] = Normalizer::of(reinterpret_cast<const float*>(row_at(in.logits, row)), vocab);
  });
  for_each_row(pool, static_cast<int64_t>(in.rows.size()), vocab, [&](int64_t r) {
    const auto i = static_cast<size_t>(r);
    const SamplingRow& row = in.rows[i];
    const float* x = logits_of(in, i);
    const Normalizer& normalizer = normalizers[in.logit_row[i]];
    const auto of = [&](int32_t token) {
      WEFT_CHECK_LT(static_cast<int64_t>(token), vocab);
      return token < 0 ? 0.0f : normalizer.log_prob(x[token]);
    };
    out.of_ids[i] = of(ids[i]);
    out.of_targets[i] = of(row.target);
    if (out.max_top == 0) return;
    const int32_t wanted = row.top_log_probs;
    WEFT_CHECK(wanted >= 0 && wanted <= out.max_top) << wanted << " of at most " << out.max_top;
    int32_t* top_ids = out.top_ids + i * static_cast<size_t>(out.max_top);
    float* top = out.top_log_probs + i * static_cast<size_t>(out.max_top);
    find_top(x, vocab, wanted, top_ids, top);
    std::transform(top, top + wanted, top, [&](float logit) { return normalizer.log_prob(logit); });
    std::fill(top_ids + wanted, top_ids + out.max_top, -1);
    std::fill(top + wanted, top + out.max_top, -kInfinity);
  });
}

}  // namespace weft::cpu

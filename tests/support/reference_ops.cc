#include "support/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace weft::test {
namespace {

constexpr uint32_t kGapF32 = 0x7fc0abcd;
constexpr uint16_t kGapBf16 = 0x7fe1;

/// The error of a float32 sum of `terms` numbers of total size `size`, and of rounding the result once more.
double sum_bound(double terms, double size, double value, DType result) {
  return terms * rounding(DType::f32) * size + rounding(result) * std::abs(value) + 1e-37;
}

double softmax_term(double logit, double largest) { return logit == largest ? 1 : std::exp(logit - largest); }

double largest_number(std::span<const double> values) {
  double largest = -HUGE_VAL;
  for (double v : values) {
    if (v > largest) largest = v;
  }
  return largest;
}

/// Indices by falling value, NaN last, equal ones in ascending order.
std::vector<int32_t> preference(std::span<const double> values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const double x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  return order;
}

}  // namespace

double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-23; }

Strided::Strided(Gen& gen, DType dtype, std::vector<int64_t> sizes, double size)
    : sizes_(std::move(sizes)), strides_(sizes_.size(), 1), dtype_(dtype) {
  int64_t step = 1;
  for (size_t d = sizes_.size(); d-- > 0;) {
    strides_[d] = step;
    step *= sizes_[d];
    step += gen.chance(0.5) ? gen.in(0, 5) : 0;
  }
  const int64_t count = std::max<int64_t>(step, 1);
  storage_.assign(static_cast<size_t>(count), 0);
  used_.assign(static_cast<size_t>(count), false);
  const int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>());
  for (int64_t i = 0; i < total; ++i) {
    int64_t at = 0;
    for (int64_t d = static_cast<int64_t>(sizes_.size()) - 1, rest = i; d >= 0; --d) {
      at += rest % sizes_[static_cast<size_t>(d)] * strides_[static_cast<size_t>(d)];
      rest /= sizes_[static_cast<size_t>(d)];
    }
    used_[static_cast<size_t>(at)] = true;
  }
  auto* f32 = reinterpret_cast<float*>(storage_.data());
  auto* half = reinterpret_cast<bf16*>(storage_.data());
  for (size_t i = 0; i < used_.size(); ++i) {
    const auto value = static_cast<float>(gen.normal() * size);
    if (dtype_ == DType::f32) {
      f32[i] = used_[i] ? value : std::bit_cast<float>(kGapF32);
    } else {
      half[i] = used_[i] ? bf16(value) : std::bit_cast<bf16>(kGapBf16);
    }
  }
}

View Strided::view() {
  switch (sizes_.size()) {
    case 1:
      return View(storage_.data(), dtype_, {sizes_[0]}, {strides_[0]});
    case 2:
      return View(storage_.data(), dtype_, {sizes_[0], sizes_[1]}, {strides_[0], strides_[1]});
    default:
      return View(storage_.data(), dtype_, {sizes_[0], sizes_[1], sizes_[2]}, {strides_[0], strides_[1], strides_[2]});
  }
}

std::vector<double> Strided::values() {
  std::vector<double> result;
  const auto* f32 = reinterpret_cast<const float*>(storage_.data());
  const auto* half = reinterpret_cast<const bf16*>(storage_.data());
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) result.push_back(dtype_ == DType::f32 ? f32[i] : static_cast<float>(half[i]));
  }
  return result;
}

void Strided::set(int64_t row, int64_t column, double value) {
  const auto at = static_cast<size_t>(row * strides_[0] + column * strides_[1]);
  if (dtype_ == DType::f32) {
    reinterpret_cast<float*>(storage_.data())[at] = static_cast<float>(value);
  } else {
    reinterpret_cast<bf16*>(storage_.data())[at] = bf16(static_cast<float>(value));
  }
}

bool Strided::gaps_are_untouched() const {
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    uint16_t half;
    std::memcpy(&half, reinterpret_cast<const char*>(storage_.data()) + 2 * i, 2);
    if (dtype_ == DType::f32 ? storage_[i] != kGapF32 : half != kGapBf16) return false;
  }
  return true;
}

std::string differences(std::span<const double> got, const Expected& expected) {
  const std::vector<double>& want = expected.values;
  if (got.size() != want.size()) return fmt::format("{} elements instead of {}", got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = std::isnan(want[i])   ? std::isnan(got[i])
                      : std::isinf(want[i]) ? got[i] == want[i]
                                            : std::isfinite(got[i]);
    if (!same) return fmt::format("element {}: {} instead of {}", i, got[i], want[i]);
  }
  size_t worst = 0;
  double excess = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(want[i])) continue;
    const double ratio = std::abs(got[i] - want[i]) / expected.bounds[i];
    if (ratio > excess) {
      excess = ratio;
      worst = i;
    }
  }
  if (excess <= 1) return "";
  return fmt::format("element {}: {} instead of {}, {} times the bound {}", worst, got[worst], want[worst], excess,
                     expected.bounds[worst]);
}

Expected reference_linear(std::span<const double> x, std::span<const double> w, std::span<const double> bias, int64_t rows,
                          int64_t in, int64_t out, DType result) {
  Expected expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < out; ++column) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(column)], size = std::abs(sum);
      for (int64_t k = 0; k < in; ++k) {
        const double term = x[static_cast<size_t>(row * in + k)] * w[static_cast<size_t>(column * in + k)];
        sum += term;
        size += std::abs(term);
      }
      expected.values.push_back(sum);
      expected.bounds.push_back(sum_bound(static_cast<double>(in + 1), size, sum, result));
    }
  }
  return expected;
}

Expected reference_rms_norm(std::span<const double> x, std::span<const double> weight, double eps, DType result) {
  Expected expected;
  for (size_t begin = 0; begin < x.size(); begin += weight.size()) {
    double squares = 0;
    for (size_t i = 0; i < weight.size(); ++i) squares += x[begin + i] * x[begin + i];
    const double rms = std::sqrt(squares / static_cast<double>(weight.size()) + eps);
    for (size_t i = 0; i < weight.size(); ++i) {
      const double value = x[begin + i] / rms * weight[i];
      expected.values.push_back(value);
      expected.bounds.push_back(sum_bound(static_cast<double>(weight.size()) + 4, std::abs(value), value, result));
    }
  }
  return expected;
}

Expected reference_silu_mul(std::span<const double> gate_up, int64_t rows, int64_t width, DType result) {
  Expected expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = gate_up[static_cast<size_t>(2 * row * width + i)];
      const double up = gate_up[static_cast<size_t>((2 * row + 1) * width + i)];
      const double value = gate / (1 + std::exp(-gate)) * up;
      expected.values.push_back(value);
      expected.bounds.push_back(sum_bound(8, std::abs(value), value, result));
    }
  }
  return expected;
}

ReferenceRoute reference_route(std::span<const double> logits, const Routing& routing) {
  const double largest = largest_number(logits);
  double sum = 0;
  for (double l : logits) sum += std::isnan(l) ? 0 : softmax_term(l, largest);
  std::vector<double> scores, ranks;
  for (size_t e = 0; e < logits.size(); ++e) {
    const bool softmax = routing.scores == Routing::Scores::softmax;
    scores.push_back(softmax ? softmax_term(logits[e], largest) / sum : 1 / (1 + std::exp(-logits[e])));
    ranks.push_back(scores[e] + (routing.bias != nullptr ? routing.bias[e] : 0));
  }

  const auto groups = static_cast<size_t>(routing.n_group), size = logits.size() / groups;
  std::vector<double> group_ranks;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double> members(ranks.begin() + static_cast<int64_t>(g * size),
                                ranks.begin() + static_cast<int64_t>((g + 1) * size));
    const std::vector<int32_t> order = preference(members);
    double rank = 0;
    const size_t counted = routing.group_rank == Routing::GroupRank::best ? 1 : std::min<size_t>(2, size);
    for (size_t i = 0; i < counted; ++i) {
      const double member = members[static_cast<size_t>(order[i])];
      rank += std::isnan(member) ? -HUGE_VAL : member;
    }
    group_ranks.push_back(rank);
  }
  const std::vector<int32_t> group_order = preference(group_ranks);
  for (size_t i = static_cast<size_t>(routing.topk_group); i < groups; ++i) {
    for (size_t e = 0; e < size; ++e) {
      double& rank = ranks[static_cast<size_t>(group_order[i]) * size + e];
      if (!std::isnan(rank)) rank = -HUGE_VAL;
    }
  }

  ReferenceRoute result;
  result.experts = preference(ranks);
  result.experts.resize(static_cast<size_t>(routing.top_k));
  std::sort(result.experts.begin(), result.experts.end());
  double chosen = 1e-20;  // Scores that are all zero stay zero.
  for (int32_t e : result.experts) chosen += scores[static_cast<size_t>(e)];
  for (int32_t e : result.experts) {
    result.weights.push_back(scores[static_cast<size_t>(e)] / (routing.normalize ? chosen : 1) * routing.scale);
  }
  return result;
}

int32_t reference_argmax(std::span<const double> logits) { return preference(logits).front(); }

double reference_log_prob(std::span<const double> logits, int32_t id) {
  const double largest = largest_number(logits);
  double sum = 0;
  for (double l : logits) sum += std::exp(l - largest);
  return logits[static_cast<size_t>(id)] - largest - std::log(sum);
}

}  // namespace weft::test

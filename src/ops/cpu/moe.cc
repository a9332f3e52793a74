#include "ops/cpu/moe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "ops/cpu/row_blocks.h"

namespace weft::cpu {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

/// A row's scores in memory of a fixed size, on the stack of the task.
using Scores = std::array<double, Routing::kMaxExperts>;

/// Whether `a` comes before `b`: larger first, NaN last. Equal ones keep their order, so scans take the lower id.
bool precedes(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a > b; }

void softmax(std::span<double> scores) {
  double largest = kNone;
  for (double s : scores) largest = s > largest ? s : largest;
  // NaN stays NaN but spoils no number, so the sum leaves it out. The largest is 1 even where it is infinite.
  double sum = 0;
  for (double& s : scores) {
    s = s == largest ? 1 : std::exp(s - largest);
    if (!std::isnan(s)) sum += s;
  }
  for (double& s : scores) s /= sum;
}

void sigmoid(std::span<double> scores) {
  for (double& s : scores) s = 1 / (1 + std::exp(-s));
}

/// The indices of the best of `ranks`, as many as `chosen` holds, equal ones by lower index, in ascending order.
void choose_best(std::span<const double> ranks, std::span<int32_t> chosen) {
  size_t filled = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto beaten = [&](size_t place) { return precedes(ranks[i], ranks[static_cast<size_t>(chosen[place])]); };
    if (filled == chosen.size() && !beaten(filled - 1)) continue;
    if (filled < chosen.size()) ++filled;
    size_t place = filled - 1;
    for (; place > 0 && beaten(place - 1); --place) chosen[place] = chosen[place - 1];
    chosen[place] = static_cast<int32_t>(i);
  }
  std::sort(chosen.begin(), chosen.end());
}

/// The best of a group, or the sum of its two best, NaN left out.
double rank_of_group(std::span<const double> group, Routing::GroupRank rank) {
  double first = kNone, second = kNone;
  for (double s : group) {
    if (s > first) {
      second = first;
      first = s;
    } else if (s > second) {
      second = s;
    }
  }
  return rank == Routing::GroupRank::best || group.size() < 2 ? first : first + second;
}

/// Experts outside the best groups lose their rank.
void keep_best_groups(std::span<double> ranks, const Routing& routing) {
  const size_t groups = static_cast<size_t>(routing.n_group), size = ranks.size() / groups;
  std::array<double, Routing::kMaxExperts> group_ranks;
  std::array<int32_t, Routing::kMaxExperts> kept;
  for (size_t g = 0; g < groups; ++g) group_ranks[g] = rank_of_group(ranks.subspan(g * size, size), routing.group_rank);
  const std::span<int32_t> chosen(kept.data(), static_cast<size_t>(routing.topk_group));
  choose_best({group_ranks.data(), groups}, chosen);
  for (size_t g = 0; g < groups; ++g) {
    if (std::binary_search(chosen.begin(), chosen.end(), static_cast<int32_t>(g))) continue;
    for (double& r : ranks.subspan(g * size, size)) r = std::isnan(r) ? r : kNone;
  }
}

void route_row(const float* logits, size_t experts, const Routing& routing, int32_t* chosen, float* weights) {
  Scores score_memory, rank_memory;
  const std::span<double> scores(score_memory.data(), experts), ranks(rank_memory.data(), experts);
  std::copy_n(logits, experts, scores.begin());
  routing.scores == Routing::Scores::softmax ? softmax(scores) : sigmoid(scores);
  for (size_t e = 0; e < experts; ++e) ranks[e] = scores[e] + (routing.bias != nullptr ? routing.bias[e] : 0.0f);
  if (routing.topk_group < routing.n_group) keep_best_groups(ranks, routing);

  const std::span<int32_t> best(chosen, static_cast<size_t>(routing.top_k));
  choose_best(ranks, best);
  double sum = 0;
  for (int32_t e : best) sum += scores[static_cast<size_t>(e)];
  // Sigmoids can all underflow; their weights are then zero rather than NaN.
  const double factor = routing.scale / (routing.normalize ? sum + 1e-20 : 1.0);
  for (size_t j = 0; j < best.size(); ++j) weights[j] = static_cast<float>(scores[static_cast<size_t>(best[j])] * factor);
}

}  // namespace

void route(Pool& pool, ConstView logits, const Routing& routing, View experts, View weights) {
  const int64_t count = logits.size(1);
  // An exponential is worth some twenty elements of simpler work.
  for_each_row(pool, logits.size(0), count * 20, [&](int64_t t) {
    route_row(reinterpret_cast<const float*>(row_at(logits, t)), static_cast<size_t>(count), routing,
              reinterpret_cast<int32_t*>(row_at(experts, t)), reinterpret_cast<float*>(row_at(weights, t)));
  });
}

void group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows) {
  const int64_t count = experts.size(0), top_k = experts.size(1);
  const auto expert = [&](int64_t t, int64_t j) {
    const int32_t e = experts.as<int32_t>()[t * experts.stride(0) + j * experts.stride(1)];
    WEFT_CHECK(e >= 0 && e < num_experts) << "expert " << e << " of " << num_experts;
    return e;
  };
  // offsets[e + 1] counts, then offsets[e] is where expert e's rows begin, then where its next one goes: the next begin.
  std::fill_n(rows.offsets, num_experts + 1, 0);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t j = 0; j < top_k; ++j) ++rows.offsets[expert(t, j) + 1];
  }
  for (int e = 0; e < num_experts; ++e) rows.offsets[e + 1] += rows.offsets[e];
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int32_t place = rows.offsets[expert(t, j)]++;
      rows.source[place] = static_cast<int32_t>(t);
      rows.place[t * top_k + j] = place;
    }
  }
  for (int e = num_experts; e > 0; --e) rows.offsets[e] = rows.offsets[e - 1];
  rows.offsets[0] = 0;
}

}  // namespace weft::cpu

#include "support/reference_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace weft::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

bool is_allowed(const SampledLogits& in, const SamplingRow& row, int64_t token) {
  if (row.allowed_mask < 0) return true;
  const int64_t words = (in.logits.size(1) + 31) / 32;
  return (in.token_masks[static_cast<size_t>(row.allowed_mask * words + token / 32)] >> (token % 32) & 1) != 0;
}

std::vector<float> changed(const SampledLogits& in, const SamplingRow& row, std::vector<float> x) {
  for (size_t i = 0; i < x.size(); ++i)
    if (!is_allowed(in, row, static_cast<int64_t>(i))) x[i] = -kInf;
  for (const LogitBias& entry : in.biases.subspan(row.biases.begin, row.biases.count)) x[entry.token] += entry.bias;
  for (const PenaltyToken& entry : in.penalty_tokens.subspan(row.penalty_tokens.begin, row.penalty_tokens.count)) {
    float& logit = x[entry.token];
    if (logit > 0)
      logit /= row.repetition_penalty;
    else
      logit *= row.repetition_penalty;
    if (entry.generated == 0) continue;
    logit -= row.frequency_penalty * static_cast<float>(entry.generated);
    logit -= row.presence_penalty;
  }
  return x;
}

int32_t fallback(const SampledLogits& in, const SamplingRow& row, std::span<const float> raw) {
  for (const bool number : {true, false})
    for (size_t i = 0; i < raw.size(); ++i)
      if (is_allowed(in, row, static_cast<int64_t>(i)) && (!number || !std::isnan(raw[i]))) return static_cast<int32_t>(i);
  return 0;
}

}  // namespace

int32_t SamplingBatch::add_logits(std::span<const float> logits) {
  logits_.insert(logits_.end(), logits.begin(), logits.end());
  return static_cast<int32_t>(logits_.size() / static_cast<size_t>(vocab_)) - 1;
}

void SamplingBatch::add(int32_t logit_row, SamplingRow row, std::span<const PenaltyToken> penalties,
                        std::span<const LogitBias> biases, std::span<const int32_t> allowed) {
  row.penalty_tokens = {static_cast<int32_t>(penalties_.size()), static_cast<int32_t>(penalties.size())};
  row.biases = {static_cast<int32_t>(biases_.size()), static_cast<int32_t>(biases.size())};
  penalties_.insert(penalties_.end(), penalties.begin(), penalties.end());
  biases_.insert(biases_.end(), biases.begin(), biases.end());
  if (!allowed.empty()) {
    const auto words = static_cast<size_t>((vocab_ + 31) / 32), at = masks_.size();
    row.allowed_mask = static_cast<int32_t>(at / words);
    masks_.resize(at + words);
    for (const int32_t token : allowed)
      if (token >= 0) masks_[at + static_cast<size_t>(token / 32)] |= uint32_t{1} << (token % 32);
  }
  rows_.push_back(row);
  logit_row_.push_back(logit_row);
}

std::span<const float> SamplingBatch::logits_of(size_t r) const {
  return std::span(logits_).subspan(static_cast<size_t>(logit_row_[r] * vocab_), static_cast<size_t>(vocab_));
}

SampledLogits SamplingBatch::view() const {
  return {.logits = ConstView(logits_.data(), DType::f32, {static_cast<int64_t>(logits_.size()) / vocab_, vocab_}),
          .rows = rows_,
          .logit_row = logit_row_.data(),
          .penalty_tokens = penalties_,
          .biases = biases_,
          .token_masks = masks_};
}

std::vector<int32_t> SamplingBatch::sample(Ops& ops) const {
  const SampledLogits in = view();
  const size_t bytes = ops.sampling_workspace_bytes(in.logits.size(0), vocab_);
  const Buffer work = ops.allocate(bytes);
  Array<int32_t> ids(size());
  ops.sample(in, View(work.data(), DType::u8, {static_cast<int64_t>(bytes)}), ids.data());
  return {ids.begin(), ids.end()};
}

SamplingBatch::LogProbResult SamplingBatch::log_probs(Ops& ops, std::span<const int32_t> ids, int32_t max_top) const {
  const SampledLogits in = view();
  const size_t bytes = ops.sampling_workspace_bytes(in.logits.size(0), vocab_);
  const Buffer work = ops.allocate(bytes);
  const size_t tops = size() * static_cast<size_t>(max_top);
  const Array<int32_t> given(ids.begin(), ids.end());
  Array<float> of_ids(size()), of_targets(size()), top_log_probs(tops);
  Array<int32_t> top_ids(tops);
  ops.log_probs(in, View(work.data(), DType::u8, {static_cast<int64_t>(bytes)}), given.data(),
                {.of_ids = of_ids.data(),
                 .of_targets = of_targets.data(),
                 .max_top = max_top,
                 .top_ids = top_ids.data(),
                 .top_log_probs = top_log_probs.data()});
  return {.of_ids = {of_ids.begin(), of_ids.end()},
          .of_targets = {of_targets.begin(), of_targets.end()},
          .top_log_probs = {top_log_probs.begin(), top_log_probs.end()},
          .top_ids = {top_ids.begin(), top_ids.end()}};
}

std::vector<Candidate> reference_candidates(const SampledLogits& in, size_t r) {
  const SamplingRow& row = in.rows[r];
  const ConstView of_row = in.logits.rows(in.logit_row[r], 1);
  const auto* first = of_row.as<float>();
  const std::vector<float> raw(first, first + of_row.size(1));
  const std::vector<float> x = changed(in, row, raw);

  std::vector<int32_t> order;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] > -kInf) order.push_back(static_cast<int32_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  if (order.empty()) return {{fallback(in, row, raw), 1}};
  if (row.temperature == 0) return {{order.front(), 1}};

  std::vector<double> weights;
  for (const int32_t token : order) {
    const double most = x[order.front()], logit = x[token];
    weights.push_back(logit == most ? 1 : std::exp((logit - most) / row.temperature));
  }
  const auto keep = [&](size_t count) { weights.resize(std::min(count, weights.size())); };
  size_t count = 0;
  while (count < weights.size() && weights[count] >= row.min_p) ++count;
  keep(count);
  if (row.top_k > 0) keep(static_cast<size_t>(row.top_k));
  if (row.top_p < 1) {
    const double wanted = row.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
    double sum = weights[0];
    for (count = 1; count < weights.size() && sum < wanted; ++count) sum += weights[count];
    keep(count);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0) candidates.push_back({order[i], weights[i] / sum});
  return candidates;
}

int32_t reference_draw(std::span<const Candidate> candidates, double u) {
  double sum = 0;
  for (const Candidate& candidate : candidates)
    if ((sum += candidate.probability) > u) return candidate.token;
  return candidates.back().token;
}

void add_any_row(Gen& gen, SamplingBatch& batch) {
  const int64_t vocab = batch.vocab();
  const double size = gen.pick({0.01, 1.0, 4.0, 100.0});
  const int kind = static_cast<int>(gen.in(0, 5));
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) {
    x = static_cast<float>(size * gen.normal());
    if (kind == 1) x = std::round(x);                     // many ties
    if (kind == 2) x = gen.pick({0.0f, -0.0f, 1.0f});     // nothing but ties
    if (kind == 3 && gen.chance(0.5)) x = std::nanf("");  // numbers here and there
    if (kind == 3 && gen.chance(0.5)) x = -kInf;
    if (kind == 4) x = gen.pick({-kInf, std::nanf(""), gen.chance(0.02) ? kInf : -kInf});  // hardly a number
  }
  const auto list = [&](double share) {
    std::set<int32_t> tokens;
    for (int64_t i = gen.in(1, 8); i > 0; --i) tokens.insert(static_cast<int32_t>(gen.in(0, vocab - 1)));
    for (int32_t token = 0; token < vocab; ++token)
      if (gen.chance(share)) tokens.insert(token);
    return std::vector<int32_t>(tokens.begin(), tokens.end());
  };
  SamplingRow row{.seed = gen.bits(),
                  .choice = static_cast<int32_t>(gen.in(0, 3)),
                  .position = static_cast<int32_t>(gen.in(0, 1 << 20)),
                  .temperature = gen.pick({0.0f, 1.0f, 0.7f, 1.3f, 0.01f, 100.0f, 1e-20f})};
  if (gen.chance(0.4)) row.top_k = static_cast<int32_t>(gen.chance(0.7) ? gen.in(1, 12) : gen.in(1, vocab + 5));
  if (gen.chance(0.4)) row.top_p = gen.pick({0.0f, 0.1f, 0.5f, 0.9f, 0.95f, 0.9999f});
  if (gen.chance(0.3)) row.min_p = gen.pick({0.001f, 0.1f, 0.9f, 1.0f});
  std::vector<PenaltyToken> penalties;
  std::vector<LogitBias> biases;
  std::vector<int32_t> allowed;
  if (gen.chance(0.4)) {
    row.repetition_penalty = gen.pick({1.0f, 1.3f, 0.8f});
    row.frequency_penalty = gen.pick({0.0f, 0.5f, -0.3f});
    row.presence_penalty = gen.pick({0.0f, 0.7f, -1.5f});
    for (const int32_t token : list(0.2)) {
      const auto generated = static_cast<int32_t>(gen.in(0, 3));
      penalties.push_back({.token = token, .generated = generated, .in_prompt = generated == 0 || gen.chance(0.5) ? 1 : 0});
    }
  }
  if (gen.chance(0.3))
    for (const int32_t token : list(0))
      biases.push_back({.token = token, .bias = gen.chance(0.2) ? -kInf : static_cast<float>(5 * gen.normal())});
  if (gen.chance(0.3)) allowed = gen.chance(0.05) ? std::vector<int32_t>{-1} : list(gen.pick({0.0, 0.5, 0.99}));
  batch.add(batch.add_logits(logits), row, penalties, biases, allowed);
}

}  // namespace weft::test

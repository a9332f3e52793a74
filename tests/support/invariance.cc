#include "support/invariance.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "model/config.h"
#include "support/golden_check.h"
#include "support/golden_files.h"
#include "support/prop.h"
#include "support/reference_model.h"

namespace weft::test {
namespace {

/// Largest difference; infinite where sizes differ or a value is not finite.
template <typename T>
double worst(std::span<const float> a, std::span<const T> b) {
  if (a.size() != b.size() || a.empty()) return HUGE_VAL;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = std::isfinite(difference) ? std::max(most, difference) : HUGE_VAL;
  }
  return most;
}

double spread_of(const std::vector<Result>& results, int64_t vocab) {
  std::vector<double> rows;
  for (const Result& result : results) rows.insert(rows.end(), result.captured.logits.begin(), result.captured.logits.end());
  return mean_row_std(rows, vocab);
}

}  // namespace

std::vector<int> edge_lengths(int dcp, int interleave) {
  const int turn = dcp * interleave;
  const std::set<int> lengths = {1, std::max(1, dcp - 1), std::max(1, turn - 1), turn, turn + 1, 61, 150};
  return {lengths.begin(), lengths.end()};
}

std::vector<Request> seeded_requests(const std::vector<int>& lengths, int64_t vocab, int generate) {
  std::vector<Request> requests;
  for (const int length : lengths) {
    Gen gen(static_cast<uint64_t>(length));
    Request request;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    request.label = "prompt" + std::to_string(length);
    for (int i = 0; i < length; ++i) request.prompt.push_back(static_cast<int32_t>(gen.in(0, vocab - 1)));
    for (int i = 0; i < generate; ++i) request.forced_ids.push_back(static_cast<int32_t>(gen.in(0, vocab - 1)));
    request.max_tokens = generate;
    request.capture = {.all_logits = true, .want_logits = true, .record = {}};
    requests.push_back(std::move(request));
  }
  return requests;
}

Invariance::Invariance(std::filesystem::path model_dir)
    : model_dir_(std::move(model_dir)), vocab_(load_config(model_dir_).vocab) {}

std::vector<Result> Invariance::run(const GridPoint& point, const std::vector<Request>& requests) const {
  Engine engine(engine_config(point, model_dir_, ComputeDType::f32, requests));
  return run_requests(engine, requests, point.alone);
}

double Invariance::against_one_rank(const GridPoint& point, const std::vector<int>& lengths) {
  const std::vector<Request> requests = seeded_requests(lengths, vocab_);
  std::vector<Result>& base = base_[{point.tp, lengths}];
  if (base.empty()) base = run({.tp = point.tp, .dcp = 1, .budget = 4096, .alone = true}, requests);
  const std::vector<Result> results = run(point, requests);
  double most = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    most = std::max(most, worst<float>(results[i].captured.logits, base[i].captured.logits));
    most = std::max(most, worst<float>(results[i].captured.gen_logits, base[i].captured.gen_logits));
  }
  return most / spread_of(base, vocab_);
}

double Invariance::against_reference(const GridPoint& point, const std::vector<int>& lengths) const {
  const ReferenceModel reference(model_dir_);
  const std::vector<Request> requests = seeded_requests(lengths, vocab_);
  const std::vector<Result> results = run(point, requests);
  double most = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> ids = requests[i].prompt;
    ids.insert(ids.end(), requests[i].forced_ids.begin(), requests[i].forced_ids.end() - 1);
    const std::vector<double> expected = reference.forward(ids).logits;
    // The last prompt position comes twice: as a row of the prompt and as the first that chose a token.
    const size_t prompt_values = results[i].captured.logits.size();
    const std::span<const double> all(expected);
    most = std::max(most, worst<double>(results[i].captured.logits, all.first(std::min(prompt_values, all.size()))));
    const size_t generated = results[i].captured.gen_logits.size();
    most = std::max(most, worst<double>(results[i].captured.gen_logits, all.last(std::min(generated, all.size()))));
  }
  return most / spread_of(results, vocab_);
}

}  // namespace weft::test

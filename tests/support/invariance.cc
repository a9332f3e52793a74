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

double spread_of(const std::vector<PromptResult>& results, int64_t vocab) {
  std::vector<double> rows;
  for (const PromptResult& result : results) rows.insert(rows.end(), result.logits.begin(), result.logits.end());
  return mean_row_std(rows, vocab);
}

}  // namespace

std::vector<int> edge_lengths(int dcp, int interleave) {
  const int turn = dcp * interleave;
  const std::set<int> lengths = {1, std::max(1, dcp - 1), std::max(1, turn - 1), turn, turn + 1, 61, 150};
  return {lengths.begin(), lengths.end()};
}

std::vector<Prompt> seeded_prompts(const std::vector<int>& lengths, int64_t vocab, int generate) {
  std::vector<Prompt> prompts;
  for (const int length : lengths) {
    Gen gen(static_cast<uint64_t>(length));
    Prompt prompt;
    prompt.name = "prompt" + std::to_string(length);
    for (int i = 0; i < length; ++i) prompt.input_ids.push_back(static_cast<int32_t>(gen.in(0, vocab - 1)));
    for (int i = 0; i < generate; ++i) prompt.forced_ids.push_back(static_cast<int32_t>(gen.in(0, vocab - 1)));
    prompt.generate = generate;
    prompt.all_logits = prompt.want_logits = true;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Invariance::Invariance(std::filesystem::path model_dir)
    : model_dir_(std::move(model_dir)), vocab_(load_config(model_dir_).vocab) {}

std::vector<PromptResult> Invariance::run(const GridPoint& point, const std::vector<Prompt>& prompts) const {
  Engine engine(engine_config(point, model_dir_, ComputeDType::f32, prompts));
  return run_prompts(engine, prompts, point.alone);
}

double Invariance::against_one_rank(const GridPoint& point, const std::vector<int>& lengths) {
  const std::vector<Prompt> prompts = seeded_prompts(lengths, vocab_);
  std::vector<PromptResult>& base = base_[{point.tp, lengths}];
  if (base.empty()) base = run({.tp = point.tp, .dcp = 1, .budget = 4096, .alone = true}, prompts);
  const std::vector<PromptResult> results = run(point, prompts);
  double most = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    most = std::max(most, worst<float>(results[i].logits, base[i].logits));
    most = std::max(most, worst<float>(results[i].gen_logits, base[i].gen_logits));
  }
  return most / spread_of(base, vocab_);
}

double Invariance::against_reference(const GridPoint& point, const std::vector<int>& lengths) const {
  const ReferenceModel reference(model_dir_);
  const std::vector<Prompt> prompts = seeded_prompts(lengths, vocab_);
  const std::vector<PromptResult> results = run(point, prompts);
  double most = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> ids = prompts[i].input_ids;
    ids.insert(ids.end(), prompts[i].forced_ids.begin(), prompts[i].forced_ids.end() - 1);
    const std::vector<double> expected = reference.forward(ids).logits;
    // The last prompt position comes twice: as a row of the prompt and as the first that chose a token.
    const size_t prompt_values = results[i].logits.size();
    const std::span<const double> all(expected);
    most = std::max(most, worst<double>(results[i].logits, all.first(std::min(prompt_values, all.size()))));
    const size_t generated = results[i].gen_logits.size();
    most = std::max(most, worst<double>(results[i].gen_logits, all.last(std::min(generated, all.size()))));
  }
  return most / spread_of(results, vocab_);
}

}  // namespace weft::test

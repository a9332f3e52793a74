#include "engine/replay.h"

#include <algorithm>
#include <map>

#include "engine/config_text.h"
#include "engine/model_team.h"
#include "engine/plan_builder.h"
#include "engine/sizes.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

/// A model on its ranks that catches up with a flight.
class Replayer {
 public:
  explicit Replayer(const Flight& flight)
      : config_(config_from_text(flight.config)),
        model_(load_config(config_.model_dir, config_.num_layers)),
        resolved_(resolve(model_, config_, *make_cpu_ops(1))),
        builder_(model_, resolved_.grid, plan_options(model_, config_, resolved_)),
        team_(model_, config_, resolved_, thread_ranks(resolved_.grid)),
        shadow_(flight.before),
        known_(shadow_.rows().size(), false) {}

  /// Brings the cache to where the plan expects it, then runs it.
  const StepResult& run(const StepPlan& plan) {
    shadow_.apply_blocks(plan);
    carry_known(plan);
    for (const auto& [sequence, length] : contexts(plan)) rebuild(plan, sequence, length);
    const StepResult& result = team_.run(plan);
    shadow_.apply_rows(plan, samples_);
    for (const int32_t slot : plan.slots_of(1, 0))
      if (slot >= 0) known_[static_cast<size_t>(slot)] = true;
    samples_ = result.ids;
    return result;
  }
  int64_t rebuilt() const { return rebuilt_; }

 private:
  /// Copied rows are as good as their source.
  void carry_known(const StepPlan& plan) {
    const int64_t n = shadow_.sizes().virtual_tokens;
    for (const BlockCopy& copy : plan[plan->copies])
      std::copy_n(known_.begin() + copy.source * n, copy.tokens, known_.begin() + copy.target * n);
  }

  /// Table slot -> tokens before the plan's first row of it.
  static std::map<int32_t, int64_t> contexts(const StepPlan& plan) {
    std::map<int32_t, int64_t> first;
    const std::span<const int32_t> slots = plan.slots_of(1, 0), sequences = plan[plan->seq_of],
                                   positions = plan[plan->positions];
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      const auto [at, fresh] = first.try_emplace(sequences[t], positions[t]);
      at->second = std::min<int64_t>(at->second, positions[t]);
    }
    return first;
  }

  /// Computes what of the first `length` tokens of a table slot has not been computed since the replay began.
  void rebuild(const StepPlan& plan, int32_t sequence, int64_t length) {
    const std::vector<int64_t> rows = shadow_.rows_of(sequence, length);
    const auto unknown = std::find_if(rows.begin(), rows.end(), [&](int64_t row) { return !known_[static_cast<size_t>(row)]; });
    if (unknown == rows.end()) return;
    const std::vector<int32_t> tokens = shadow_.tokens(sequence, length);
    const std::vector<BlockId> table = shadow_.table(sequence);
    std::vector<TableUpdate> updates;
    for (size_t i = 0; i < table.size(); ++i)
      if (table[i] >= BlockId{0})
        updates.push_back({.sequence = sequence, .ordinal = static_cast<int32_t>(i), .block = static_cast<int32_t>(table[i])});
    for (int64_t done = unknown - rows.begin(); done < length;) {
      const int64_t chunk = std::min(resolved_.limits.rows, length - done);
      const SequenceStep step{.sequence = sequence,
                              .cached = done,
                              .tokens = std::span(tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(chunk)),
                              .table = table,
                              .decode = config_.batch_invariant};
      team_.run(builder_.build(std::span(&step, 1), updates, {}, {}));
      done += chunk;
      rebuilt_ += chunk;
    }
    for (const int64_t row : rows) known_[static_cast<size_t>(row)] = true;
    // The plan will copy into blocks of this sequence: give the sources what was computed in the targets.
    std::vector<BlockCopy> back;
    for (const BlockCopy& copy : plan[plan->copies])
      if (std::find(table.begin(), table.end(), BlockId{copy.target}) != table.end())
        back.push_back({.source = copy.target, .target = copy.source, .tokens = copy.tokens});
    if (!back.empty()) team_.run(builder_.build({}, {}, back, {}));
  }

  const EngineConfig config_;
  const ModelConfig model_;
  const ResolvedConfig resolved_;
  PlanBuilder builder_;
  ModelTeam team_;
  TokenShadow shadow_;
  std::vector<bool> known_;  ///< rows of the shadow that were computed here
  std::vector<int32_t> samples_;
  int64_t rebuilt_ = 0;
};

std::optional<ReplayReport::Difference> compare(uint64_t step, const FlightStep& recorded, const StepResult& now) {
  ReplayReport::Difference difference{.step = step};
  const auto [then_id, now_id] = std::mismatch(recorded.ids.begin(), recorded.ids.end(), now.ids.begin(), now.ids.end());
  if (then_id != recorded.ids.end() && now_id != now.ids.end()) {
    difference.row = static_cast<int32_t>(then_id - recorded.ids.begin());
    difference.recorded = *then_id;
    difference.now = *now_id;
  }
  const auto& then = recorded.rank_checksums;
  const auto [then_rank, now_rank] =
      std::mismatch(then.begin(), then.end(), now.rank_checksums.begin(), now.rank_checksums.end());
  if (then_rank != then.end() && now_rank != now.rank_checksums.end())
    difference.rank = static_cast<int>(then_rank - then.begin());
  if (difference.row < 0 && difference.rank < 0 && recorded.ids.size() == now.ids.size()) return std::nullopt;
  return difference;
}

}  // namespace

ReplayReport replay(const Flight& flight, const std::function<void(const std::string&)>& progress) {
  Replayer replayer(flight);
  ReplayReport report;
  for (const FlightStep& step : flight.steps) {
    const StepPlan plan = StepPlan::from_bytes(step.plan);
    report.failed_then = !step.completed;
    try {
      const StepResult& result = replayer.run(plan);
      if (step.completed) report.difference = compare(plan->step, step, result);
    } catch (const SystemError& error) {
      report.failure = error.what();
    }
    report.rebuilt_tokens = replayer.rebuilt();
    if (progress)
      progress(fmt::format("step {}: {} rows, {}", plan->step, plan->rows,
                           !report.failure.empty() ? "failed"
                           : report.difference     ? "different"
                                                   : "the same"));
    if (report.difference || !report.failure.empty()) break;
    if (step.completed) ++report.steps;
  }
  return report;
}

}  // namespace weft

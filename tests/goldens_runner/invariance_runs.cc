#include "goldens_runner/invariance_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "support/checkpoint_writer.h"
#include "support/invariance.h"
#include "support/synthetic_models.h"

namespace weft::test {
namespace {

// In standard deviations of the logits.
constexpr double kOneRankBound = 1e-4, kReferenceBound = 1e-3;

/// Chunks that end nowhere in particular, and a gather bound that makes many waves of one context.
const GridValues kValues{.budgets = {7, 50, 4096}, .blocks = {16, 8}, .gathers = {24, 0}};

/// Every (tp, W) with W > 1: each is compared with W = 1 at its tp.
std::vector<Ranks> spread_ranks(const GridHeads& heads) {
  std::vector<Ranks> out;
  for (const Ranks& ranks : legal_ranks(heads)) {
    if (ranks.second > 1) out.push_back(ranks);
  }
  return out;
}

struct Row {
  int runs = 0, failed = 0;
  double worst_one_rank = 0, worst_reference = 0;
};

template <typename Measure>
void measure(const std::string& name, const GridPoint& point, const char* against, double bound, double& worst, Row& row,
             Measure difference_at) {
  ++row.runs;
  std::string failure;
  try {
    const double difference = difference_at(point);
    worst = std::max(worst, difference);
    if (!(difference < bound)) failure = fmt::format("off by {:.2e} of the spread, at most {:.0e}", difference, bound);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (failure.empty()) return;
  ++row.failed;
  fmt::print("FAILED {} {} against {}: {}\n", name, to_string(point), against, failure);
  std::fflush(stdout);
}

/// Runs one model at all points.
DoneModel run_model(const SyntheticModel& model, const std::vector<GridPoint>& points) {
  const auto began = std::chrono::steady_clock::now();
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), model.config);
  Invariance invariance(folder.path());
  Row row;
  measure(model.name, points.back(), "float64", kReferenceBound, row.worst_reference, row,
          [&](const GridPoint& point) { return invariance.against_reference(point); });
  for (const GridPoint& at : points) {
    measure(model.name, at, "W = 1", kOneRankBound, row.worst_one_rank, row,
            [&](const GridPoint& point) { return invariance.against_one_rank(point); });
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return {.runs = row.runs,
          .failed = row.failed,
          .seconds = seconds,
          .row = fmt::format("{:<26} {:>5} {:>15.1e} {:>17.1e} {:>7.0f}  {}", model.name, row.runs, row.worst_one_rank,
                             row.worst_reference, seconds, row.failed == 0 ? "ok" : fmt::format("{} FAILED", row.failed))};
}

}  // namespace

RunCounts run_invariance(const RunChoice& choice, DoneFile& done) {
  std::vector<SyntheticModel> models;
  std::vector<std::vector<Ranks>> ranks;
  for (SyntheticModel& model : synthetic_models()) {
    if (!choice.wanted(model.name)) continue;
    ranks.push_back(spread_ranks(model.heads));
    models.push_back(std::move(model));
  }
  if (models.empty()) return {};
  const std::vector<std::vector<GridPoint>> sample = sample_grid(ranks, kValues);
  if (!choice.list) {
    fmt::print("\n{:<26} {:>5} {:>15} {:>17} {:>7}\n", "written checkpoint", "runs", "worst to W = 1", "worst to float64",
               "seconds");
  }

  RunCounts counts;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::vector<GridPoint> points = choice.full ? full_grid(ranks[i], kValues) : sample[i];
    if (choice.list) {
      for (const GridPoint& point : points) fmt::print("{} {} float32\n", models[i].name, to_string(point));
      continue;
    }
    const std::optional<DoneModel> before = done.find(models[i].name);
    const DoneModel model = before ? *before : run_model(models[i], points);
    fmt::print("{}\n", model.row);
    std::fflush(stdout);
    done.add(models[i].name, model);
    counts.add(model);
  }
  return counts;
}

}  // namespace weft::test

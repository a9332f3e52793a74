// Compares whole runs of the engine with golden data, over the ways to run a model that must not change what it computes.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "goldens_runner/invariance_runs.h"
#include "model/config.h"
#include "support/golden_check.h"
#include "support/golden_files.h"
#include "support/golden_grid.h"
#include "support/golden_ways.h"

namespace weft::test {
namespace {

constexpr const char* kUsage = R"(usage: weft_goldens [--full] [--dir DIR] [--model NAME]... [--done FILE] [--list]

Runs each golden model of DIR (default: tests/goldens) and compares logits, tokens, experts and hidden rows. Without --dir also
checkpoints that it writes itself, for what no golden covers: W = 3, 6 and 8, and the architectures without goldens.
  --full        the whole product of ranks, interleave, budgets, exchanges, batching; without it a sample in which every
                pair of values occurs
  --dir DIR     a folder of golden folders, or one golden folder
  --model NAME  only this folder; may be repeated
  --done FILE   remember finished models there, and do not run those again
  --list        print the runs and stop
Exit status 0 if every run is as its golden, 1 if one is not, 2 for bad arguments.
)";

struct Arguments {
  std::filesystem::path dir;   ///< empty: the project's own goldens and the written checkpoints
  std::filesystem::path done;  ///< empty: nothing is remembered
  std::vector<std::string> models;
  bool full = false, list = false;

  bool wants(const std::string& name) const {
    return models.empty() || std::find(models.begin(), models.end(), name) != models.end();
  }
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw UserError("{} needs a value", flag);
      return argv[++i];
    };
    if (flag == "--full") {
      out.full = true;
    } else if (flag == "--list") {
      out.list = true;
    } else if (flag == "--dir") {
      out.dir = value();
    } else if (flag == "--done") {
      out.done = value();
    } else if (flag == "--model") {
      out.models.push_back(value());
    } else {
      throw UserError("unknown argument {}\n{}", flag, kUsage);
    }
  }
  return out;
}

/// What came of one model.
struct Row {
  std::string name;
  int runs = 0, failed_runs = 0;
  ExactReport exact;
  double worst_median = 0, worst_rms = 0, least_argmax = 1;  ///< of the bf16 runs
  int64_t clear_misses = 0;
  double seconds = 0;
};

struct Model {
  std::filesystem::path dir;
  std::vector<Ranks> ranks;
  std::vector<GridPoint> exact, rounded;  ///< float32 and bf16 runs
  std::vector<GridPoint> served;          ///< run in every way, for the tokens
};

/// bf16 is judged by medians, so the way of running matters less: every (tp, W), or one rank and the most ranks.
std::vector<GridPoint> rounded_grid(const std::vector<Ranks>& ranks, bool full) {
  std::vector<GridPoint> points;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!full && i != 0 && i + 1 != ranks.size()) continue;
    for (const DcpExchange exchange : {DcpExchange::queries, DcpExchange::keys}) {
      if (ranks[i].second == 1 && exchange == DcpExchange::keys) continue;
      points.push_back({.tp = ranks[i].first, .dcp = ranks[i].second, .budget = 64, .exchange = exchange});
    }
  }
  return points;
}

/// Every (tp, W) and interleave, or the most ranks with one. Blocks are small, so that answers outgrow them.
std::vector<GridPoint> served_grid(const std::vector<Ranks>& ranks, bool full) {
  constexpr int kBlock = 4;
  std::vector<GridPoint> points;
  for (const auto& [tp, dcp] : ranks) {
    for (const int interleave : {1, 2, kBlock}) {
      if (!full && (interleave != 1 || std::pair(tp, dcp) != ranks.back())) continue;
      points.push_back({.tp = tp, .dcp = dcp, .interleave = interleave, .block_size = kBlock, .budget = 256});
    }
  }
  return points;
}

class Runner {
 public:
  /// Runs all points of a model; prints what fails as it fails.
  Row run(const Model& model) {
    const auto began = std::chrono::steady_clock::now();
    const Golden golden = load_golden(model.dir);
    Row row{.name = golden.name, .exact = {}};
    for (const GridPoint& point : model.exact) {
      run_point(golden, point, ComputeDType::f32, row, [&](const std::vector<Result>& results) {
        const ExactReport report = check_exact(golden, results);
        row.exact.add(report);
        return report.failures;
      });
    }
    for (const GridPoint& point : model.rounded) {
      run_point(golden, point, ComputeDType::bf16, row, [&](const std::vector<Result>& results) {
        const RoundedReport report = check_rounded(golden, results);
        row.worst_median = std::max(row.worst_median, report.median_row_error);
        row.worst_rms = std::max(row.worst_rms, report.rms);
        row.least_argmax = std::min(row.least_argmax, report.same_argmax);
        row.clear_misses += report.clear_misses;
        return report.failures;
      });
    }
    engine_.reset();
    for (const GridPoint& point : model.served) {
      for (const Way way : kWays) serve(golden, point, way, row);
    }
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return row;
  }

 private:
  template <typename Check>
  void run_point(const Golden& golden, const GridPoint& point, ComputeDType dtype, Row& row, Check check) {
    const std::vector<Request> requests = golden_requests(golden, /*forced=*/dtype == ComputeDType::bf16);
    std::vector<std::string> failures;
    try {
      failures = check(run_requests(engine_for(point, golden, dtype, requests), requests, point.alone));
    } catch (const std::exception& error) {
      engine_.reset();
      failures = {error.what()};
    }
    ++row.runs;
    if (failures.empty()) return;
    ++row.failed_runs;
    fmt::print("FAILED {} {}{}\n", golden.name, to_string(point), dtype == ComputeDType::bf16 ? " bf16" : "");
    for (const std::string& failure : failures) fmt::print("         {}\n", failure);
    std::fflush(stdout);
  }

  static void serve(const Golden& golden, const GridPoint& point, Way way, Row& row) {
    std::vector<std::string> failures;
    try {
      failures = run_way(golden, point, way);
    } catch (const std::exception& error) {
      failures = {error.what()};
    }
    ++row.runs;
    if (failures.empty()) return;
    ++row.failed_runs;
    fmt::print("FAILED {} {} {}\n", golden.name, to_string(point), to_string(way));
    for (const std::string& failure : failures) fmt::print("         {}\n", failure);
    std::fflush(stdout);
  }

  /// The engine of the run before, if it was started for the same flags.
  Engine& engine_for(const GridPoint& point, const Golden& golden, ComputeDType dtype, const std::vector<Request>& requests) {
    GridPoint key = point;
    key.alone = false;
    if (engine_ == nullptr || key != key_ || dtype != dtype_ || engine_->config().model_dir != golden.dir) {
      engine_.reset();
      engine_ = std::make_unique<Engine>(engine_config(point, golden.dir, dtype, requests));
      key_ = key;
      dtype_ = dtype;
    }
    return *engine_;
  }

  std::unique_ptr<Engine> engine_;
  GridPoint key_;
  ComputeDType dtype_ = ComputeDType::automatic;
};

void print_header() {
  fmt::print("{:<18} {:>5} {:>11} {:>11} {:>13} {:>15} {:>28} {:>7}\n", "model", "runs", "worst logit", "worst row",
             "tokens equal", "experts equal", "bf16 median rms argmax clear", "seconds");
}

DoneModel finished(const Row& row) {
  const ExactReport& e = row.exact;
  const std::string experts = e.experts == 0 ? "-" : fmt::format("{}/{}", e.experts_equal, e.experts);
  const std::string rounded =
      fmt::format("{:.3f} {:.3f} {:.3f} {:>5}", row.worst_median, row.worst_rms, row.least_argmax, row.clear_misses);
  return {.runs = row.runs,
          .failed = row.failed_runs,
          .seconds = row.seconds,
          .row = fmt::format("{:<18} {:>5} {:>11.1e} {:>11.1e} {:>13} {:>15} {:>28} {:>7.0f}  {}", row.name, row.runs,
                             e.worst_logit, e.worst_hidden, fmt::format("{}/{}", e.tokens_equal, e.tokens), experts, rounded,
                             row.seconds, row.failed_runs == 0 ? "ok" : fmt::format("{} FAILED", row.failed_runs))};
}

/// The models of a folder with their runs. Folders of architectures that this version does not know go to `unsupported`.
std::vector<Model> plan_runs(const Arguments& arguments, std::vector<std::string>& unsupported) {
  std::vector<Model> models;
  for (const std::filesystem::path& dir :
       golden_folders(arguments.dir.empty() ? WEFT_SOURCE_DIR "/tests/goldens" : arguments.dir)) {
    const std::string name = folder_name(dir);
    if (!arguments.wants(name)) continue;
    if (const std::string architecture = stored_architecture(dir); !is_supported(architecture)) {
      unsupported.push_back(fmt::format("{} ({})", name, architecture));
      continue;
    }
    const ModelConfig config = load_config(dir);
    models.push_back({.dir = dir,
                      .ranks = legal_ranks({.q_heads = config.q_heads, .kv_heads = config.grid_kv_heads()}),
                      .exact = {},
                      .rounded = {},
                      .served = {}});
  }
  std::vector<std::vector<Ranks>> ranks;
  for (const Model& model : models) ranks.push_back(model.ranks);
  const std::vector<std::vector<GridPoint>> sample = sample_grid(ranks);
  for (size_t i = 0; i < models.size(); ++i) {
    models[i].exact = arguments.full ? full_grid(ranks[i]) : sample[i];
    models[i].rounded = rounded_grid(ranks[i], arguments.full);
    models[i].served = served_grid(ranks[i], arguments.full);
  }
  return models;
}

/// Adds this program's counts to the file that ./dev test sums up, if it asked for them.
void tally(int passed, int failed, size_t skipped) {
  if (const char* path = std::getenv("WEFT_TALLY"))
    std::ofstream(path, std::ios::app) << passed << " " << failed << " " << skipped << "\n";
}

int run_all(const Arguments& arguments) {
  std::vector<std::string> unsupported;
  const std::vector<Model> models = plan_runs(arguments, unsupported);
  DoneFile done(arguments.done);
  RunCounts counts;
  if (arguments.list) {
    for (const Model& model : models) {
      const std::string name = folder_name(model.dir);
      for (const GridPoint& point : model.exact) fmt::print("{} {} float32\n", name, to_string(point));
      for (const GridPoint& point : model.rounded) fmt::print("{} {} bfloat16\n", name, to_string(point));
      for (const GridPoint& point : model.served) {
        for (const Way way : kWays) fmt::print("{} {} {}\n", name, to_string(point), to_string(way));
      }
    }
  } else if (!models.empty()) {
    print_header();
    Runner runner;
    for (const Model& model : models) {
      const std::string name = folder_name(model.dir);
      const std::optional<DoneModel> before = done.find(name);
      const DoneModel now = before ? *before : finished(runner.run(model));
      fmt::print("{}\n", now.row);
      std::fflush(stdout);
      done.add(name, now);
      counts.add(now);
    }
  }
  if (arguments.dir.empty()) {
    const RunCounts written = run_invariance({.full = arguments.full,
                                              .list = arguments.list,
                                              .wanted = [&](const std::string& name) { return arguments.wants(name); }},
                                             done);
    counts.runs += written.runs;
    counts.failed += written.failed;
    counts.seconds += written.seconds;
  }
  if (arguments.list) return 0;
  for (const std::string& name : unsupported) fmt::print("{}: not supported in this version, not run\n", name);
  if (counts.runs == 0 && unsupported.empty()) throw UserError("no such model");
  fmt::print("{} runs, {} failed, {} folders not supported, {:.0f} s\n", counts.runs, counts.failed, unsupported.size(),
             counts.seconds);
  tally(counts.runs - counts.failed, counts.failed, unsupported.size());
  return counts.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  weft::log::start();
  spdlog::set_level(spdlog::level::warn);  // An engine starts for every run: its banners would bury the table.
  try {
    return weft::test::run_all(weft::test::parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "weft_goldens: {}\n", error.what());
    return 2;
  }
}

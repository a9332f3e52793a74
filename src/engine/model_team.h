#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/config.h"
#include "engine/rank_team.h"
#include "engine/sizes.h"
#include "engine/step_runner.h"
#include "exchange/exchange_counters.h"

namespace weft {

/// The ranks that live in this process, and how they meet the others.
struct LocalRanks {
  int first = 0, count = 1;  ///< tp ranks [first, first + count)
  int on_same_cores = 1;     ///< ranks that compute on the cores of this process, those of other processes included
  /// The communicator of tp rank `rank` in the group of all ranks, and in its DCP group. Called once per rank, on the rank's
  /// thread, for all ranks at the same time.
  std::function<std::unique_ptr<Communicator>(int rank)> make_tp, make_dcp;
  /// Wakes every rank that waits for another, in whatever process. Called by the thread of the rank that failed, in the handler
  /// of its error; must not throw.
  std::function<void()> abort;
  /// Called with each plan before the ranks of this process run it, and with the checksum of the tokens of the step before:
  /// hands both to other processes, which compare the tokens with theirs. Empty where there are none.
  std::function<void(const StepPlan&, uint64_t tokens_before)> announce = {};
  /// Sets what is called, on some thread, when another process is lost; nothing takes it back. Empty where there are no others.
  std::function<void(std::function<void(const std::string& why)> call)> on_loss = {};
};

/// All ranks of the grid as threads of this process.
LocalRanks thread_ranks(const RankGrid& grid);

/// The ranks of this process with their weights, KV memory and decoders.
///
/// Thread: the owner's, one call at a time; what a rank owns is made, used and destroyed on the rank's own thread. run()
/// allocates nothing unless the plan records or wants logits.
class ModelTeam final : public StepRunner {
 public:
  /// Reads the weights. `model` and `resolved` outlive the team. Throws UserError for a bad checkpoint, SystemError where the
  /// machine fails.
  ModelTeam(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved, LocalRanks local);
  ~ModelTeam() override;

  /// What came of the plan on the first rank of this process. All of its ranks must have sampled the same tokens: if not, this
  /// is a SystemError too.
  const StepResult& run(const StepPlan& plan) override;

  /// Checksum of the tokens of the last step; 0 before the first.
  uint64_t last_tokens() const { return last_tokens_; }
  /// What the ranks of this process have moved, in their order. Lives as long as the team.
  std::vector<const ExchangeCounters*> exchange_counters() const;
  /// The tp rank of the first of them.
  int first_rank() const { return local_.first; }
  /// Threads that each rank computes with.
  int threads_per_rank() const { return threads_per_rank_; }
  /// Sets what is called, on some thread, when the ranks in another process are lost. Nothing takes it back.
  void on_loss(std::function<void(const std::string& why)> call) {
    if (local_.on_loss) local_.on_loss(std::move(call));
  }

 private:
  struct Rank;

  void load(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved);

  const LocalRanks local_;
  const int threads_per_rank_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  RankTeam team_;
  const StepPlan* plan_ = nullptr;  ///< of the current run
  uint64_t last_tokens_ = 0;
  const RankTeam::Job step_;  ///< runs plan_ on a rank
};

}  // namespace weft

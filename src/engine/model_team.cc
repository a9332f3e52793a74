#include "engine/model_team.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "comm/thread_group.h"
#include "exchange/collective_exchange.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "ops/make_ops.h"

namespace weft {

/// What one rank owns, members in the order of their use of one another.
struct ModelTeam::Rank {
  std::unique_ptr<Communicator> dcp, tp;
  std::unique_ptr<Ops> ops;
  std::optional<Weights> weights;
  std::unique_ptr<KvRegion> region;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Decoder> decoder;
  StepResult result;
};

namespace {

int threads_of_a_rank(const EngineConfig& config, int ranks) {
  const int cores = config.threads > 0 ? config.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, cores / ranks);
}

/// Room for the largest step, so that no step takes memory.
void reserve(StepResult& result, const StepLimits& limits) {
  constexpr size_t kMostTop = 20;
  // A row for every row of the step, and for a prompt's last row one per choice.
  const auto rows = static_cast<size_t>(limits.sampling_rows());
  result.ids.reserve(rows);
  result.accepted.reserve(rows);
  result.log_probs.reserve(rows);
  result.target_log_probs.reserve(rows);
  result.top_ids.reserve(rows * kMostTop);
  result.top_log_probs.reserve(rows * kMostTop);
}

}  // namespace

LocalRanks thread_ranks(const RankGrid& grid) {
  struct Groups {
    explicit Groups(const RankGrid& grid) : tp(grid.tp()) {
      for (int group = 0; group < grid.groups(); ++group) dcp.push_back(std::make_unique<ThreadGroup>(grid.dcp()));
    }
    ThreadGroup tp;
    std::vector<std::unique_ptr<ThreadGroup>> dcp;
  };
  const auto groups = std::make_shared<Groups>(grid);
  return {
      .first = 0,
      .count = grid.tp(),
      .on_same_cores = grid.tp(),
      .make_tp = [groups](int rank) { return groups->tp.join(rank); },
      .make_dcp = [groups, grid](
                      int rank) { return groups->dcp[static_cast<size_t>(grid.group_of(rank))]->join(grid.dcp_rank_of(rank)); },
      .abort =
          [groups] {
            groups->tp.abort();
            for (const auto& group : groups->dcp) group->abort();
          }};
}

ModelTeam::ModelTeam(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved, LocalRanks local)
    : local_(std::move(local)),
      threads_per_rank_(threads_of_a_rank(config, local_.on_same_cores)),
      ranks_(static_cast<size_t>(local_.count)),
      team_(local_.count, local_.abort),
      step_([this](int index) {
        Rank& rank = *ranks_[static_cast<size_t>(index)];
        rank.decoder->forward(*plan_, {}, rank.result);
      }) {
  load(model, config, resolved);
}

ModelTeam::~ModelTeam() {
  try {
    team_.run([this](int index) { ranks_[static_cast<size_t>(index)].reset(); });
  } catch (const std::exception&) {
    // The team died in an earlier run and said so there; what the ranks own goes with this object.
  }
}

void ModelTeam::load(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved) {
  std::optional<Checkpoint> checkpoint;
  if (config.load_format != LoadFormat::dummy) checkpoint.emplace(config.model_dir);
  const RankGrid& grid = resolved.grid;
  team_.run([&](int index) {
    const int tp_rank = local_.first + index;
    ranks_[static_cast<size_t>(index)] = std::make_unique<Rank>();
    Rank& rank = *ranks_[static_cast<size_t>(index)];
    rank.tp = local_.make_tp(tp_rank);
    rank.dcp = local_.make_dcp(tp_rank);
    rank.ops = make_cpu_ops(threads_per_rank_, config.batch_invariant);
    const LoadOptions options{.dtype = resolved.limits.dtype, .tp_rank = tp_rank, .progress = tp_rank == 0};
    rank.weights = checkpoint ? load_weights(model, grid, *checkpoint, options, *rank.ops)
                              : dummy_weights(model, grid, config.seed, options, *rank.ops);
    rank.region = std::make_unique<KvRegion>(resolved.shape, resolved.sizes.capacity.blocks,
                                             [&](size_t bytes) { return rank.ops->allocate(bytes); });
    rank.exchange =
        std::make_unique<CollectiveExchange>(*rank.dcp, *rank.tp, *rank.ops, exchange_limits(model, grid, resolved.limits));
    rank.decoder = std::make_unique<Decoder>(Decoder::Parts{.config = model,
                                                            .grid = grid,
                                                            .weights = *rank.weights,
                                                            .limits = resolved.limits,
                                                            .region = *rank.region,
                                                            .ops = *rank.ops,
                                                            .exchange = *rank.exchange});
    reserve(rank.result, resolved.limits);
    rank.result.rank_checksums.reserve(static_cast<size_t>(local_.count));
  });
}

std::vector<const ExchangeCounters*> ModelTeam::exchange_counters() const {
  std::vector<const ExchangeCounters*> out;
  for (const auto& rank : ranks_) out.push_back(&rank->exchange->counters());
  return out;
}

const StepResult& ModelTeam::run(const StepPlan& plan) {
  if (local_.announce) local_.announce(plan, last_tokens_);
  plan_ = &plan;
  team_.run(step_);
  StepResult& first = ranks_.front()->result;
  first.rank_checksums.clear();
  for (const auto& rank : ranks_) first.rank_checksums.push_back(rank->result.checksum);
  for (const auto& rank : ranks_) {
    if (rank->result.checksum != first.checksum)
      throw SystemError("ranks disagree on the tokens of step {}: the machine or the build is broken", plan->step);
  }
  last_tokens_ = first.checksum;
  return first;
}

}  // namespace weft

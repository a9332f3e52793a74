#include "engine/engine.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "base/log.h"
#include "cache/block_pool.h"
#include "comm/thread_group.h"
#include "engine/plan_builder.h"
#include "engine/rank_team.h"
#include "engine/scheduler.h"
#include "engine/sizes.h"
#include "exchange/collective_exchange.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

/// What one rank owns. Made, used and destroyed on the rank's thread, members in the order of their use of one another.
struct Rank {
  std::unique_ptr<Communicator> dcp, tp;
  std::unique_ptr<Ops> ops;
  std::optional<Weights> weights;
  std::unique_ptr<KvRegion> region;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Decoder> decoder;
  StepResult result;
};

ResolvedConfig resolve_on_cpu(const ModelConfig& model, const EngineConfig& config) {
  const auto ops = make_cpu_ops(1);
  ResolvedConfig resolved = resolve(model, config, 0, *ops);
  require_memory(resolved);
  return resolved;
}

/// Copies rows [first, first + n) of a recorded [T, width] matrix behind what `out` holds.
template <typename T>
void append_rows(std::vector<T>& out, const std::vector<T>& from, int64_t first, int64_t n, int64_t width) {
  out.insert(out.end(), from.begin() + first * width, from.begin() + (first + n) * width);
}

}  // namespace

struct Engine::Parts {
  explicit Parts(const EngineConfig& config_in);
  ~Parts();

  void load();
  void check(const Prompt& prompt) const;
  void step(std::span<const Scheduler::Chosen> chosen, const std::vector<Prompt>& prompts);
  bool absorb(Sequence& sequence, int64_t tokens, size_t index, const Prompt& prompt, PromptResult& result,
              const EngineEvents& events);

  EngineConfig config;
  ModelConfig model;
  ResolvedConfig resolved;
  BlockPool pool;
  PlanBuilder builder;
  ThreadGroup tp_group;
  std::vector<std::unique_ptr<ThreadGroup>> dcp_groups;
  std::vector<std::unique_ptr<Rank>> ranks;
  RankTeam team;
  std::vector<SequenceStep> steps;
  std::vector<TableUpdate> updates;
};

Engine::Parts::Parts(const EngineConfig& config_in)
    : config(config_in),
      model(load_config(config_in.model_dir, config_in.num_layers)),
      resolved(resolve_on_cpu(model, config)),
      pool(resolved.sizes.capacity.blocks),
      builder(model, resolved.grid,
              {.layout = resolved.shape.layout,
               .exchange = config.dcp_exchange,
               .element_bytes = static_cast<int>(size_of(resolved.limits.dtype)),
               .context_rows = resolved.limits.context_rows,
               .first_layer = 0,
               .last_layer = model.layers}),
      tp_group(resolved.grid.tp()),
      ranks(static_cast<size_t>(resolved.grid.tp())),
      team(resolved.grid.tp(), [this] {
        tp_group.abort();
        for (const auto& group : dcp_groups) group->abort();
      }) {
  for (int group = 0; group < resolved.grid.groups(); ++group)
    dcp_groups.push_back(std::make_unique<ThreadGroup>(resolved.grid.dcp()));
  load();
}

Engine::Parts::~Parts() {
  try {
    team.run([this](int rank) { ranks[static_cast<size_t>(rank)].reset(); });
  } catch (const std::exception&) {
    // The team died in an earlier run and said so there; what the ranks own goes with this object.
  }
}

void Engine::Parts::load() {
  std::optional<Checkpoint> checkpoint;
  if (config.load_format != LoadFormat::dummy) checkpoint.emplace(config.model_dir);
  const int cores = config.threads > 0 ? config.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = std::max(1, cores / resolved.grid.tp());
  team.run([&](int index) {
    const RankGrid& grid = resolved.grid;
    ranks[static_cast<size_t>(index)] = std::make_unique<Rank>();
    Rank& rank = *ranks[static_cast<size_t>(index)];
    rank.tp = tp_group.join(index);
    rank.dcp = dcp_groups[static_cast<size_t>(grid.group_of(index))]->join(grid.dcp_rank_of(index));
    rank.ops = make_cpu_ops(threads);
    const LoadOptions options{.dtype = resolved.limits.dtype, .tp_rank = index, .progress = index == 0};
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
  });
  const EngineSizes& sizes = resolved.sizes;
  log::info(
      "{} on {} ranks, {} to a DCP group: {} KV tokens in {} blocks of {}; per rank {:.1f} MiB weights, {:.1f} workspaces, "
      "{:.1f} exchange, {:.1f} KV; {}, {} threads a rank",
      to_string(model.architecture), resolved.grid.tp(), resolved.grid.dcp(), sizes.capacity.tokens, sizes.capacity.blocks,
      resolved.shape.layout.virtual_tokens(), static_cast<double>(sizes.weight_bytes) / 0x1p20,
      static_cast<double>(sizes.workspace_bytes) / 0x1p20, static_cast<double>(sizes.exchange_bytes) / 0x1p20,
      static_cast<double>(sizes.kv_bytes) / 0x1p20, to_string(sizes.dtype), threads);
}

void Engine::Parts::check(const Prompt& prompt) const {
  if (prompt.input_ids.empty()) throw UserError("prompt {} has no tokens", prompt.name);
  if (prompt.generate < 0) throw UserError("prompt {} asks for {} tokens", prompt.name, prompt.generate);
  const auto generate = static_cast<size_t>(prompt.generate);
  if (!prompt.forced_ids.empty() && prompt.forced_ids.size() < generate)
    throw UserError("prompt {} has {} forced ids for {} generated tokens", prompt.name, prompt.forced_ids.size(), generate);
  for (const auto* ids : {&prompt.input_ids, &prompt.forced_ids}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= model.vocab)
        throw UserError("prompt {} holds token {}: the vocabulary has ids 0 to {}", prompt.name, id, model.vocab - 1);
    }
  }
  const auto length = static_cast<int64_t>(prompt.input_ids.size() + generate);
  if (length > resolved.sizes.max_model_len) {
    throw UserError(
        "prompt {} is too long: {} prompt tokens and {} to generate are {}, the limit is {} (--max-model-len), with KV "
        "memory for {}",
        prompt.name, prompt.input_ids.size(), generate, length, resolved.sizes.max_model_len, resolved.sizes.capacity.tokens);
  }
}

void Engine::Parts::step(std::span<const Scheduler::Chosen> chosen, const std::vector<Prompt>& prompts) {
  steps.clear();
  updates.clear();
  PlanBuilder::Flags flags;
  for (const Scheduler::Chosen& choice : chosen) {
    const Sequence& sequence = *choice.sequence;
    const Prompt& prompt = prompts[sequence.prompt];
    const bool prefill = sequence.in_prefill(), ends = sequence.cached + choice.tokens >= sequence.prompt_tokens;
    const bool wants_last = prompt.generate > 0 || prompt.want_logits;
    using Logits = SequenceStep::Logits;
    steps.push_back(
        {.sequence = sequence.slot,
         .cached = sequence.cached,
         .tokens = std::span(sequence.tokens).subspan(static_cast<size_t>(sequence.cached), static_cast<size_t>(choice.tokens)),
         .table = sequence.blocks.blocks(),
         .decode = !prefill,
         .logits = prefill && prompt.all_logits ? Logits::all
                   : ends && wants_last         ? Logits::last
                                                : Logits::none,
         .targets = {}});
    flags.want_logits |= prompt.all_logits || prompt.want_logits;
    flags.record.hidden |= prefill && prompt.record.hidden;
    flags.record.router |= prefill && prompt.record.router;
    if (!choice.admitted_now) continue;
    for (size_t i = 0; i < sequence.blocks.blocks().size(); ++i)
      updates.push_back({.sequence = sequence.slot,
                         .ordinal = static_cast<int32_t>(i),
                         .block = static_cast<int32_t>(sequence.blocks.blocks()[i])});
  }
  const StepPlan& plan = builder.build(steps, updates, {}, flags);
  team.run([&](int index) {
    Rank& rank = *ranks[static_cast<size_t>(index)];
    rank.decoder->forward(plan, {}, rank.result);
  });
  for (const auto& rank : ranks) {
    if (rank->result.checksum != ranks.front()->result.checksum)
      throw SystemError("ranks disagree on the tokens of step {}: the machine or the build is broken", plan->step);
  }
}

bool Engine::Parts::absorb(Sequence& sequence, int64_t tokens, size_t index, const Prompt& prompt, PromptResult& result,
                           const EngineEvents& events) {
  const StepResult& step = ranks.front()->result;
  const bool prefill = sequence.in_prefill();
  const int64_t row = builder.first_rows()[index], logit = builder.first_logit_rows()[index];
  if (prefill && prompt.record.hidden) {
    result.hidden.resize(step.hidden.size());
    for (size_t i = 0; i < step.hidden.size(); ++i) append_rows(result.hidden[i], step.hidden[i], row, tokens, model.hidden);
  }
  if (prefill && prompt.record.router) {
    result.router.resize(step.router.size());
    for (size_t i = 0; i < step.router.size(); ++i) {
      result.router[i].layer = step.router[i].layer;
      result.router[i].top_k = step.router[i].top_k;
      append_rows(result.router[i].experts, step.router[i].experts, row, tokens, step.router[i].top_k);
      append_rows(result.router[i].weights, step.router[i].weights, row, tokens, step.router[i].top_k);
    }
  }
  if (prefill && prompt.all_logits) append_rows(result.logits, step.logits, logit, tokens, model.vocab);

  sequence.cached += tokens;
  if (sequence.in_prefill()) return false;
  const int64_t last = prefill && prompt.all_logits ? logit + tokens - 1 : logit;
  if (prompt.want_logits) {
    if (prefill) append_rows(result.last_logits, step.logits, last, 1, model.vocab);
    if (prompt.generate > 0) append_rows(result.gen_logits, step.logits, last, 1, model.vocab);
  }
  if (prompt.generate > 0) {
    const int32_t id = step.ids[static_cast<size_t>(last)];
    result.gen_ids.push_back(id);
    const auto at = static_cast<size_t>(sequence.generated++);
    sequence.tokens.push_back(prompt.forced_ids.empty() ? id : prompt.forced_ids[at]);
    if (events.token) events.token(sequence.prompt, id);
  }
  return sequence.generated >= sequence.generate;
}

Engine::Engine(const EngineConfig& config) : parts_(std::make_unique<Parts>(config)) {}
Engine::~Engine() = default;

const ModelConfig& Engine::model() const { return parts_->model; }
const RankGrid& Engine::grid() const { return parts_->resolved.grid; }
const EngineSizes& Engine::sizes() const { return parts_->resolved.sizes; }
const EngineConfig& Engine::config() const { return parts_->config; }

std::vector<PromptResult> Engine::run(const std::vector<Prompt>& prompts, const EngineEvents& events) {
  Parts& p = *parts_;
  for (const Prompt& prompt : prompts) p.check(prompt);
  std::vector<PromptResult> results(prompts.size());
  const BlockLayout layout = p.resolved.shape.layout;
  Scheduler scheduler(p.pool, layout, {.tokens = p.resolved.limits.rows, .sequences = p.resolved.limits.sequences});
  for (size_t i = 0; i < prompts.size(); ++i)
    scheduler.add(std::make_unique<Sequence>(i, prompts[i].input_ids, prompts[i].generate, p.pool));

  std::vector<int64_t> shares(static_cast<size_t>(layout.shard.ranks));
  while (true) {
    const std::span<const Scheduler::Chosen> chosen = scheduler.next();
    if (chosen.empty()) break;
    p.step(chosen, prompts);
    for (size_t i = 0; i < chosen.size(); ++i) {
      Sequence& sequence = *chosen[i].sequence;
      const size_t prompt = sequence.prompt;
      const bool finished = p.absorb(sequence, chosen[i].tokens, i, prompts[prompt], results[prompt], events);
      if (events.shares) {
        for (int rank = 0; rank < layout.shard.ranks; ++rank)
          shares[static_cast<size_t>(rank)] = layout.shard.local_count(sequence.cached, rank);
        events.shares(prompt, shares);
      }
      scheduler.done(sequence, finished);
    }
  }
  return results;
}

}  // namespace weft

#include "model/decoder.h"

#include <chrono>
#include <cstring>

#include "layout/even_cut.h"
#include "model/mla.h"

namespace weft {
namespace {

/// A recorded copy in float32, whatever the compute dtype.
std::vector<float> download_floats(Ops& ops, ConstView view) {
  std::vector<float> out(static_cast<size_t>(view.count()));
  if (view.dtype() == DType::f32) {
    ops.download(view, out.data());
    return out;
  }
  std::vector<bf16> raw(out.size());
  ops.download(view, raw.data());
  for (size_t i = 0; i < raw.size(); ++i) out[i] = static_cast<float>(raw[i]);
  return out;
}

}  // namespace

Decoder::Stages::Stages(Workspace& memory, const ModelConfig& config, const RankGrid& grid, const StepLimits& limits, Ops& ops,
                        Exchange& exchange) {
  const int64_t rows = limits.rows, hidden = config.hidden, half = config.rope.rotary / 2;
  tables = memory.take(DType::i32, {limits.sequences, limits.blocks_per_sequence});
  ids = memory.take(DType::i32, {rows});
  samples = memory.take(DType::i32, {limits.sampling_rows()});
  residual = memory.take(limits.dtype, {rows, hidden});
  h = memory.take(limits.dtype, {rows, hidden});
  delta = memory.take(limits.dtype, {rows, hidden});
  cos = memory.take(DType::f32, {rows, half});
  sin = memory.take(DType::f32, {rows, half});
  const size_t shared = memory.mark();

  if (config.mla)
    attention = std::make_unique<LatentAttention>(config, grid, limits, ops, exchange, memory);
  else
    attention = std::make_unique<GroupedQueryAttention>(config, grid, limits, ops, exchange, memory);
  memory.rewind(shared);

  mlp = std::make_unique<Mlp>(config, grid.tp(), limits, ops, memory);
  if (config.moe.num_experts > 0) moe = std::make_unique<Moe>(config, grid.tp(), limits, ops, memory);
  memory.rewind(shared);

  const int64_t part = EvenCut{config.vocab, grid.tp()}.padded();
  logit_rows = memory.take(limits.dtype, {limits.logit_rows, hidden});
  part_logits = memory.take(DType::f32, {limits.logit_rows * part});
  if (grid.tp() > 1) {
    all_part_logits = memory.take(DType::f32, {grid.tp() * limits.logit_rows * part});
    logits = memory.take(DType::f32, {limits.logit_rows, config.vocab});
  }
  const size_t work = ops.sampling_workspace_bytes(limits.logit_rows, config.vocab);
  sampling = memory.take(DType::u8, {static_cast<int64_t>(work)});
}

size_t Decoder::workspace_bytes(const ModelConfig& config, const RankGrid& grid, const StepLimits& limits, Ops& ops,
                                Exchange& exchange) {
  Workspace measure;
  const Stages stages(measure, config, grid, limits, ops, exchange);
  return measure.peak();
}

Decoder::Decoder(const Parts& parts)
    : config_(parts.config),
      grid_(parts.grid),
      weights_(parts.weights),
      limits_(parts.limits),
      region_(parts.region),
      ops_(parts.ops),
      exchange_(parts.exchange),
      inv_freq_(parts.config.rope.inv_freq()),
      memory_(ops_.allocate(workspace_bytes(config_, grid_, limits_, ops_, exchange_))) {
  Workspace place(memory_);
  stages_ = std::make_unique<Stages>(place, config_, grid_, limits_, ops_, exchange_);
  copy_runs_.reserve(region_.planes().size());
  for (const AttentionLimits& attention : attention_limits(config_, grid_, limits_, region_.shape().layout.block_tokens))
    ops_.reserve(attention);
  logit_row_.reserve(static_cast<size_t>(limits_.sampling_rows()));
}

void Decoder::forward(const StepPlan& plan, View hidden, StepResult& result) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t exchanged = exchange_.counters().nanoseconds();
  WEFT_CHECK_LE(plan->rows, limits_.rows);
  WEFT_CHECK_EQ(plan->ranks, exchange_.dcp_size());
  WEFT_CHECK_EQ(plan->first_layer, weights_.first_layer);
  WEFT_CHECK_EQ(plan->last_layer, weights_.first_layer + static_cast<int>(weights_.layers.size()));
  result.hidden.clear();
  result.router.clear();

  update_tables(plan);
  copy_blocks(plan);
  if (plan->first_layer == 0)
    embed(plan, plan->rows);
  else
    ops_.copy(hidden, stages_->residual.rows(0, plan->rows));
  run_layers(plan, result);
  if (plan->last_layer == config_.layers)
    sample(plan, result);
  else
    ops_.copy(stages_->residual.rows(0, plan->rows), hidden);
  ops_.synchronize();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.exchange_seconds = static_cast<double>(exchange_.counters().nanoseconds() - exchanged) * 1e-9;
}

void Decoder::update_tables(const StepPlan& plan) {
  for (const TableUpdate& update : plan[plan->table_updates]) {
    WEFT_CHECK(update.sequence >= 0 && update.sequence < limits_.sequences && update.ordinal >= 0 &&
               update.ordinal < limits_.blocks_per_sequence)
        << "table entry (" << update.sequence << ", " << update.ordinal << ")";
    const View entry = stages_->tables.rows(update.sequence, 1).slice(1, update.ordinal, 1);
    ops_.upload(&update.block, entry);
  }
}

void Decoder::copy_blocks(const StepPlan& plan) {
  const ShardLayout shard = region_.shape().layout.shard;
  for (const BlockCopy& copy : plan[plan->copies]) {
    copy_runs_.clear();
    for (size_t i = 0; i < region_.planes().size(); ++i) {
      const int64_t rows = region_.planes()[i].replicated ? copy.tokens : shard.local_count(copy.tokens, exchange_.dcp_rank());
      const auto source = region_.bytes(i, BlockId{copy.source}, rows), target = region_.bytes(i, BlockId{copy.target}, rows);
      copy_runs_.push_back({.target = target.data(), .source = source.data(), .bytes = source.size()});
    }
    ops_.copy(copy_runs_);
  }
}

void Decoder::embed(const StepPlan& plan, int64_t rows) {
  // Ids from the host, or samples of the previous forward that the host has not seen yet.
  auto* ids = stages_->ids.as<int32_t>();
  const auto* samples = stages_->samples.as<int32_t>();
  const std::span<const int32_t> sources = plan[plan->token_src];
  for (int64_t t = 0; t < rows; ++t) {
    const int32_t source = sources[static_cast<size_t>(t)];
    ids[t] = source >= 0 ? source : samples[-1 - source];
  }
  const Range part = EvenCut{config_.vocab, grid_.tp()}.part(exchange_.tp_rank());
  const ConstView table(weights_.embedding.data(), limits_.dtype, {part.size(), config_.hidden});
  const View residual = stages_->residual.rows(0, rows);
  ops_.embed(ids, table, part.begin, residual);
  exchange_.all_reduce(residual);
}

void Decoder::run_layers(const StepPlan& plan, StepResult& result) {
  const int64_t rows = plan->rows;
  const View residual = stages_->residual.rows(0, rows), h = stages_->h.rows(0, rows), delta = stages_->delta.rows(0, rows);
  const bool recorder = exchange_.tp_rank() == 0;
  const auto record_hidden = [&] {
    if (plan->record.hidden && recorder) result.hidden.push_back(download_floats(ops_, residual));
  };
  record_hidden();

  AttentionStep step(plan);
  step.tables = stages_->tables.as<int32_t>();
  step.table_stride = limits_.blocks_per_sequence;
  const View cos = stages_->cos.rows(0, rows), sin = stages_->sin.rows(0, rows);
  ops_.rope_table(plan[plan->positions].data(), inv_freq_, config_.rope.cos_factor(), cos, sin);
  step.cos = cos;
  step.sin = sin;

  ops_.rms_norm(residual, weights_.layers.front().input_norm.data(), config_.norm_eps, h);
  for (int layer = plan->first_layer; layer < plan->last_layer; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer - weights_.first_layer)];
    stages_->attention->forward(step, w, region_.view(layer, w.kv_scales), h, delta);
    exchange_.all_reduce_norm(delta, residual, w.post_norm.data(), config_.norm_eps, h);
    mlp(layer, w, h, delta, result, plan->record.router && recorder);
    // The norm that follows belongs to the next layer, to the head, or to the next stage (which makes its own).
    const float* next = layer + 1 < plan->last_layer         ? (&w + 1)->input_norm.data()
                        : plan->last_layer == config_.layers ? weights_.final_norm.data()
                                                             : nullptr;
    if (next != nullptr) {
      exchange_.all_reduce_norm(delta, residual, next, config_.norm_eps, h);
    } else {
      exchange_.all_reduce(delta);
      ops_.add(delta, residual);
    }
    record_hidden();
  }
}

void Decoder::mlp(int layer, const LayerWeights& w, ConstView h, View out, StepResult& result, bool record) {
  if (w.router == nullptr) {
    stages_->mlp->forward(*w.gate_up, *w.down, w.gate_up_bias.empty() ? nullptr : w.gate_up_bias.data(),
                          w.down_bias.empty() ? nullptr : w.down_bias.data(), h, out);
    return;
  }
  if (!record) {
    stages_->moe->forward(w, *stages_->mlp, h, out, nullptr);
    return;
  }
  StepResult::RouterRecord& picks = result.router.emplace_back();
  picks.layer = layer;
  picks.top_k = config_.moe.routing.top_k;
  const Moe::Chosen keep = [&](ConstView experts, ConstView weights) {
    const size_t at = picks.experts.size(), n = static_cast<size_t>(experts.count());
    picks.experts.resize(at + n);
    picks.weights.resize(at + n);
    ops_.download(experts, picks.experts.data() + at);
    ops_.download(weights, picks.weights.data() + at);
  };
  stages_->moe->forward(w, *stages_->mlp, h, out, &keep);
}

void Decoder::sample(const StepPlan& plan, StepResult& result) {
  const std::span<const SamplingRow> wanted = plan[plan->sampling];
  const size_t n = wanted.size(), top = static_cast<size_t>(plan->max_top_log_probs);
  const auto vocab = static_cast<size_t>(config_.vocab);
  const bool log_probs = plan->want_log_probs || top > 0, logits = plan->want_logits && exchange_.tp_rank() == 0;
  WEFT_CHECK_LE(static_cast<int64_t>(n), limits_.sampling_rows());
  result.ids.resize(n);
  result.accepted.assign(n, 1);
  result.log_probs.resize(log_probs ? n : 0);
  result.target_log_probs.resize(log_probs ? n : 0);
  result.top_ids.resize(log_probs ? n * top : 0);
  result.top_log_probs.resize(log_probs ? n * top : 0);
  result.logits.resize(logits ? n * vocab : 0);

  for (size_t begin = 0; begin < n;) {
    const LogitRows picked = pick_logit_rows(wanted, begin);
    const SampledLogits sampled{.logits = compute_logits(picked.rows),
                                .rows = wanted.subspan(begin, picked.end - begin),
                                .logit_row = logit_row_.data(),
                                .penalty_tokens = plan[plan->penalty_tokens],
                                .biases = plan[plan->biases],
                                .token_masks = plan[plan->token_masks]};
    int32_t* ids = result.ids.data() + begin;
    ops_.sample(sampled, stages_->sampling, ids);
    if (log_probs) {
      ops_.log_probs(sampled, stages_->sampling, ids,
                     {.of_ids = result.log_probs.data() + begin,
                      .of_targets = result.target_log_probs.data() + begin,
                      .max_top = plan->max_top_log_probs,
                      .top_ids = result.top_ids.data() + begin * top,
                      .top_log_probs = result.top_log_probs.data() + begin * top});
    }
    for (size_t i = begin; logits && i < picked.end; ++i)
      ops_.download(sampled.logits.rows(logit_row_[i - begin], 1), result.logits.data() + i * vocab);
    begin = picked.end;
  }
  // Kept where the next forward's token_src finds them.
  if (n > 0) std::memcpy(stages_->samples.data(), result.ids.data(), n * sizeof(int32_t));
  result.checksum = 0xcbf29ce484222325u;
  for (const int32_t id : result.ids) result.checksum = (result.checksum ^ static_cast<uint32_t>(id)) * 0x100000001b3u;
}

Decoder::LogitRows Decoder::pick_logit_rows(std::span<const SamplingRow> wanted, size_t begin) {
  logit_row_.clear();
  int64_t rows = 0, run_begin = 0;
  int32_t last = -1;
  const auto copy_run = [&] {  // neighbouring rows move together
    const int64_t run = rows - run_begin;
    if (run > 0) ops_.copy(stages_->h.rows(last + 1 - run, run), stages_->logit_rows.rows(run_begin, run));
    run_begin = rows;
  };
  size_t end = begin;
  for (; end < wanted.size(); ++end) {
    const int32_t row = wanted[end].row;
    if (rows == 0 || row != last) {  // choices of one prompt follow one another and share its logits
      if (rows == limits_.logit_rows) break;
      if (row != last + 1) copy_run();
      last = row;
      ++rows;
    }
    logit_row_.push_back(static_cast<int32_t>(rows - 1));
  }
  copy_run();
  return {.end = end, .rows = rows};
}

ConstView Decoder::compute_logits(int64_t rows) {
  const EvenCut cut{config_.vocab, grid_.tp()};
  const int64_t own = weights_.head->out(), padded = cut.padded();
  const ConstView picked = stages_->logit_rows.rows(0, rows);
  // Equal sizes for the collective: each rank's columns lie at the front of a padded row.
  const View part(stages_->part_logits.data(), DType::f32, {rows, padded});
  ops_.linear(*weights_.head, picked, nullptr, part.slice(1, 0, own));
  if (grid_.tp() == 1) return part;
  const View got(stages_->all_part_logits.data(), DType::f32, {grid_.tp(), rows, padded});
  exchange_.all_gather_tp(part, got);
  const View logits = stages_->logits.rows(0, rows);
  for (int rank = 0; rank < grid_.tp(); ++rank) {
    const Range columns = cut.part(rank);
    ops_.copy(got.at(rank).slice(1, 0, columns.size()), logits.slice(1, columns.begin, columns.size()));
  }
  return logits;
}

}  // namespace weft

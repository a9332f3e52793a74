#include "engine/plan_builder.h"

#include <algorithm>

#include "model/context_choice.h"

namespace weft {

PlanBuilder::PlanBuilder(const ModelConfig& config, const RankGrid& grid, const Options& options)
    : config_(config), grid_(grid), options_(options), gather_slots_(static_cast<size_t>(grid.dcp())) {
  WEFT_CHECK_GE(options.context_rows, 1);
  WEFT_CHECK(options.layout.shard == grid.shard()) << "layout and grid disagree";
}

namespace {

/// All gathers of a step together take no more rows of one rank than so many sequences of the greatest length have there. A
/// long chunk of one sequence gathers its context once; this leaves room for several at once.
constexpr int64_t kGatheredContexts = 4;
/// Kinds of rows in a step: decode, via queries, via keys, without context.
constexpr int kKinds = 4;
/// Bytes that arrays may lose to alignment, each.
constexpr size_t kAlignment = 8;

template <typename T>
size_t reserve(std::vector<T>& list, int64_t entries) {
  list.reserve(static_cast<size_t>(entries));
  return static_cast<size_t>(entries) * sizeof(T) + kAlignment;
}

}  // namespace

void PlanBuilder::reserve(const Limits& limits) {
  const ShardLayout& shard = options_.layout.shard;
  const int64_t t = limits.rows, w = shard.ranks, words = (int64_t{limits.vocab} + 31) / 32;
  most_gathered_ = kGatheredContexts * shard.padded_count(limits.max_length);
  const int64_t waves = (most_gathered_ + options_.context_rows - 1) / options_.context_rows;
  const int64_t windows = std::min(limits.sequences, options_.context_rows);
  weft::reserve(in_turn_, limits.sequences);
  weft::reserve(placed_, limits.sequences);
  weft::reserve(first_row_, limits.sequences);
  weft::reserve(first_logit_, limits.sequences);
  weft::reserve(windows_, windows);
  weft::reserve(mask_sources_, limits.sequences);
  for (auto& slots : gather_slots_) weft::reserve(slots, most_gathered_);
  size_t bytes = sizeof(PlanHeader);
  for (auto* of_rows : {&token_src_, &positions_, &seq_of_, &fresh_begin_, &fresh_end_}) bytes += weft::reserve(*of_rows, t);
  bytes += weft::reserve(slots_, 2 * w * t) + weft::reserve(ctx_begin_, w * t) + weft::reserve(ctx_end_, w * t);
  bytes += weft::reserve(groups_, kKinds);
  bytes += weft::reserve(waves_, waves) + weft::reserve(gather_flat_, w * most_gathered_);
  bytes += weft::reserve(wave_begin_, waves * w * t) + weft::reserve(wave_end_, waves * w * t);
  bytes += weft::reserve(sampling_, limits.sampling_rows) + weft::reserve(penalty_tokens_, limits.penalty_tokens);
  bytes += weft::reserve(biases_, limits.biases) + weft::reserve(masks_, limits.sequences * words);
  bytes += static_cast<size_t>(limits.table_updates) * sizeof(TableUpdate) + kAlignment;
  bytes += static_cast<size_t>(limits.sequences) * sizeof(BlockCopy) + kAlignment;
  plan_.reserve(std::min(bytes, size_t{UINT32_MAX}));
}

const StepPlan& PlanBuilder::build(std::span<const SequenceStep> steps, std::span<const TableUpdate> updates,
                                   std::span<const BlockCopy> copies, const Flags& flags) {
  order(steps);
  int32_t rows = 0;
  for (const SequenceStep& step : steps) rows += static_cast<int32_t>(step.tokens.size());
  const int32_t total = std::max(rows, flags.pad_to);
  add_rows(steps, total);
  add_waves(steps);
  add_sampling(steps);

  plan_.clear();
  PlanHeader header;
  header.step = step_++;
  header.ranks = grid_.dcp();
  header.rows = header.bucket = total;
  header.first_layer = options_.first_layer;
  header.last_layer = options_.last_layer;
  header.want_logits = flags.want_logits;
  header.want_log_probs = flags.want_log_probs;
  header.record = flags.record;
  const auto append = [this]<typename T>(const std::vector<T>& values) { return plan_.append(std::span<const T>(values)); };
  header.token_src = append(token_src_);
  header.positions = append(positions_);
  header.seq_of = append(seq_of_);
  header.groups = append(groups_);
  header.slots = append(slots_);
  header.ctx_begin = append(ctx_begin_);
  header.ctx_end = append(ctx_end_);
  header.fresh_begin = append(fresh_begin_);
  header.fresh_end = append(fresh_end_);
  header.waves = append(waves_);
  header.gather_slots = append(gather_flat_);
  header.wave_begin = append(wave_begin_);
  header.wave_end = append(wave_end_);
  header.table_updates = plan_.append(updates);
  header.copies = plan_.append(copies);
  header.sampling = append(sampling_);
  header.penalty_tokens = append(penalty_tokens_);
  header.biases = append(biases_);
  header.token_masks = append(masks_);
  for (const SamplingRow& row : sampling_) header.max_top_log_probs = std::max(header.max_top_log_probs, row.top_log_probs);
  plan_.header() = header;
  plan_.seal();
  return plan_;
}

void PlanBuilder::order(std::span<const SequenceStep> steps) {
  in_turn_.clear();
  placed_.clear();
  gathered_ = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    WEFT_CHECK(!steps[i].tokens.empty()) << "sequence " << steps[i].sequence << " has no tokens in this step";
    in_turn_.push_back({.index = i, .via = choose_via(steps[i]), .fresh = !steps[i].decode});
  }
  // Decode rows, then rows via queries, via keys, without context: each kind is one run of rows.
  const auto kind_of = [](const Placed& p) {
    return !p.fresh ? 0 : p.via == ContextVia::queries ? 1 : p.via == ContextVia::keys ? 2 : 3;
  };
  for (int kind = 0; kind < kKinds; ++kind)
    for (const Placed& placed : in_turn_)
      if (kind_of(placed) == kind) placed_.push_back(placed);
}

ContextVia PlanBuilder::choose_via(const SequenceStep& step) {
  if (step.decode) return ContextVia::queries;
  ContextVia via = choose_context(config_, grid_, options_.element_bytes, step.cached, static_cast<int64_t>(step.tokens.size()),
                                  options_.context_row_bytes);
  // Forced, where there is a choice: nothing cached needs no exchange, and GQA on one rank has its keys at hand.
  const bool choice = via != ContextVia::none && (grid_.dcp() > 1 || config_.mla);
  if (choice && options_.exchange == DcpExchange::queries) via = ContextVia::queries;
  if (choice && options_.exchange == DcpExchange::keys) via = ContextVia::keys;
  if (via != ContextVia::keys) return via;
  const int64_t rows = options_.layout.shard.padded_count(step.cached);
  if (gathered_ + rows > most_gathered_) return ContextVia::queries;
  gathered_ += rows;
  return via;
}

void PlanBuilder::add_rows(std::span<const SequenceStep> steps, int32_t total) {
  const BlockLayout& layout = options_.layout;
  const int ranks = layout.shard.ranks;
  const auto t = static_cast<size_t>(total), w = static_cast<size_t>(ranks);
  first_row_.assign(steps.size(), 0);
  token_src_.assign(t, 0);
  positions_.assign(t, 0);
  seq_of_.assign(t, 0);
  fresh_begin_.assign(t, 0);
  fresh_end_.assign(t, 0);
  slots_.assign(2 * w * t, -1);
  ctx_begin_.assign(w * t, 0);
  ctx_end_.assign(w * t, 0);
  groups_.clear();

  int32_t row = 0, first_fresh = -1;
  for (const Placed& placed : placed_) {
    const SequenceStep& step = steps[placed.index];
    const auto n = static_cast<int32_t>(step.tokens.size());
    WEFT_CHECK_LE(layout.blocks_for(step.cached + n), static_cast<int64_t>(step.table.size()))
        << "sequence " << step.sequence << " has too few blocks";
    if (groups_.empty() || groups_.back().via != placed.via || groups_.back().fresh != placed.fresh)
      groups_.push_back({.begin = row, .end = row, .via = placed.via, .fresh = placed.fresh});
    groups_.back().end = row + n;
    if (placed.fresh && first_fresh < 0) first_fresh = row;
    first_row_[placed.index] = row;
    for (int32_t i = 0; i < n; ++i) {
      const auto r = static_cast<size_t>(row + i);
      token_src_[r] = step.tokens[static_cast<size_t>(i)];
      if (placed.fresh) {
        fresh_begin_[r] = row - first_fresh;
        fresh_end_[r] = row - first_fresh + i + 1;
      }
      add_row(step, step.cached + i, r, t);
    }
    row += n;
  }
  if (row < total) {
    if (groups_.empty()) groups_.push_back({.begin = 0, .end = 0, .via = ContextVia::queries, .fresh = false});
    groups_.back().end = total;
  }
}

/// What row `row` of `total` stores and sees: the token at `pos` of its sequence.
void PlanBuilder::add_row(const SequenceStep& step, int64_t pos, size_t row, size_t total) {
  const BlockLayout& layout = options_.layout;
  const ShardLayout& shard = layout.shard;
  const auto ranks = static_cast<size_t>(shard.ranks);
  positions_[row] = static_cast<int32_t>(pos);
  seq_of_[row] = step.sequence;
  const auto sharded = static_cast<int32_t>(layout.local_slot(step.table, shard.local_index(pos)));
  const auto replicated = static_cast<int32_t>(layout.replicated().local_slot(step.table, pos));
  slots_[static_cast<size_t>(shard.owner(pos)) * total + row] = sharded;
  // Decode rows see themselves in the cache, other rows what was there before the step.
  const int64_t visible = step.decode ? pos + 1 : step.cached;
  for (size_t rank = 0; rank < ranks; ++rank) {
    slots_[(ranks + rank) * total + row] = replicated;
    ctx_end_[rank * total + row] = static_cast<int32_t>(shard.local_count(visible, static_cast<int>(rank)));
  }
}

void PlanBuilder::add_waves(std::span<const SequenceStep> steps) {
  waves_.clear();
  wave_begin_.clear();
  wave_end_.clear();
  windows_.clear();
  window_rows_ = 0;
  for (auto& slots : gather_slots_) slots.clear();
  // Windows of the sequences' shards, packed until a wave is full.
  for (const Placed& placed : placed_) {
    if (placed.via != ContextVia::keys) continue;
    const int64_t padded = options_.layout.shard.padded_count(steps[placed.index].cached);
    for (int64_t local = 0; local < padded;) {
      const int64_t rows = std::min(padded - local, options_.context_rows - window_rows_);
      windows_.push_back({.index = placed.index, .local = local, .rows = rows, .at = window_rows_});
      window_rows_ += rows;
      local += rows;
      if (window_rows_ == options_.context_rows) close_wave(steps);
    }
  }
  close_wave(steps);
  gather_flat_.clear();
  for (const auto& slots : gather_slots_) gather_flat_.insert(gather_flat_.end(), slots.begin(), slots.end());
}

void PlanBuilder::close_wave(std::span<const SequenceStep> steps) {
  if (windows_.empty()) return;
  const BlockLayout& layout = options_.layout;
  const size_t first = windows_.front().index, last = windows_.back().index;
  waves_.push_back({.row_begin = first_row_[first],
                    .row_end = first_row_[last] + static_cast<int32_t>(steps[last].tokens.size()),
                    .rows = static_cast<int32_t>(window_rows_),
                    .slots_at = static_cast<int32_t>(gather_slots_[0].size()),
                    .ranges_at = static_cast<int32_t>(wave_begin_.size())});
  for (int rank = 0; rank < layout.shard.ranks; ++rank) {
    for (const Window& window : windows_) {
      const SequenceStep& step = steps[window.index];
      const int64_t held = layout.shard.local_count(step.cached, rank);
      for (int64_t j = window.local; j < window.local + window.rows; ++j)
        gather_slots_[static_cast<size_t>(rank)].push_back(j < held ? static_cast<int32_t>(layout.local_slot(step.table, j))
                                                                    : -1);
      const auto real = static_cast<int32_t>(std::clamp<int64_t>(held - window.local, 0, window.rows));
      const auto begin = static_cast<int32_t>(rank * window_rows_ + window.at);
      wave_begin_.insert(wave_begin_.end(), step.tokens.size(), begin);
      wave_end_.insert(wave_end_.end(), step.tokens.size(), begin + real);
    }
  }
  windows_.clear();
  window_rows_ = 0;
}

void PlanBuilder::add_sampling(std::span<const SequenceStep> steps) {
  first_logit_.assign(steps.size(), 0);
  sampling_.clear();
  penalty_tokens_.clear();
  biases_.clear();
  masks_.clear();
  mask_sources_.clear();
  last_penalties_ = {};
  last_biases_ = {};
  for (const Placed& placed : placed_) {
    const SequenceStep& step = steps[placed.index];
    first_logit_[placed.index] = static_cast<int32_t>(sampling_.size());
    if (step.logits == SequenceStep::Logits::none) continue;
    const auto n = static_cast<int32_t>(step.tokens.size());
    const int32_t first = step.logits == SequenceStep::Logits::all ? 0 : n - 1;
    for (int32_t i = first; i < n; ++i) {
      const auto at = static_cast<size_t>(i - first);
      const SamplingRow row{.row = first_row_[placed.index] + i,
                            .target = at < step.targets.size() ? step.targets[at] : -1,
                            .position = static_cast<int32_t>(step.cached + i + 1),
                            .penalty_tokens = {},
                            .biases = {},
                            .top_log_probs = step.top_log_probs};
      if (i < n - 1 || step.sampling.empty()) {
        sampling_.push_back(row);
      } else {
        for (const RowSampling& sampling : step.sampling) add_sampling_row(row, sampling);
      }
    }
  }
}

/// Appends the row that is at `place`, sampled as `sampling` says.
void PlanBuilder::add_sampling_row(SamplingRow place, const RowSampling& sampling) {
  SamplingRow row = sampling.row;
  row.row = place.row;
  row.position = place.position;
  if (row.target < 0) row.target = place.target;
  const auto slice = []<typename T>(std::vector<T>& all, std::span<const T> list, std::span<const T>& last,
                                    PlanSlice& of_last) {
    if (list.empty()) return PlanSlice();
    if (list.data() == last.data() && list.size() == last.size()) return of_last;
    last = list;
    of_last = {.begin = static_cast<int32_t>(all.size()), .count = static_cast<int32_t>(list.size())};
    all.insert(all.end(), list.begin(), list.end());
    return of_last;
  };
  row.penalty_tokens = slice(penalty_tokens_, sampling.penalty_tokens, last_penalties_, last_penalty_slice_);
  row.biases = slice(biases_, sampling.biases, last_biases_, last_bias_slice_);
  if (!sampling.allowed.empty()) {
    const auto known = std::find(mask_sources_.begin(), mask_sources_.end(), sampling.allowed.data());
    row.allowed_mask = static_cast<int32_t>(known - mask_sources_.begin());
    if (known == mask_sources_.end()) {
      mask_sources_.push_back(sampling.allowed.data());
      masks_.insert(masks_.end(), sampling.allowed.begin(), sampling.allowed.end());
    }
  }
  sampling_.push_back(row);
}

}  // namespace weft

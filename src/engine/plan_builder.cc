#include "engine/plan_builder.h"

#include <algorithm>

#include "model/context_choice.h"

namespace weft {

PlanBuilder::PlanBuilder(const ModelConfig& config, const RankGrid& grid, const Options& options)
    : config_(config), grid_(grid), options_(options), gather_slots_(static_cast<size_t>(grid.dcp())) {
  WEFT_CHECK_GE(options.context_rows, 1);
  WEFT_CHECK(options.layout.shard == grid.shard()) << "layout and grid disagree";
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

  plan_ = StepPlan();
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
  plan_.header() = header;
  plan_.seal();
  return plan_;
}

void PlanBuilder::order(std::span<const SequenceStep> steps) {
  placed_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    const SequenceStep& step = steps[i];
    WEFT_CHECK(!step.tokens.empty()) << "sequence " << step.sequence << " has no tokens in this step";
    const auto n = static_cast<int64_t>(step.tokens.size());
    Placed placed{.index = i, .via = ContextVia::queries, .fresh = !step.decode};
    if (!step.decode) {
      placed.via = choose_context(config_, grid_, options_.element_bytes, step.cached, n);
      // Forced, where there is a choice: nothing cached needs no exchange, and GQA on one rank has its keys at hand.
      const bool choice = placed.via != ContextVia::none && (grid_.dcp() > 1 || config_.mla);
      if (choice && options_.exchange == DcpExchange::queries) placed.via = ContextVia::queries;
      if (choice && options_.exchange == DcpExchange::keys) placed.via = ContextVia::keys;
    }
    placed_.push_back(placed);
  }
  // Decode rows, then rows via queries, via keys, without context: each kind is one run of rows.
  const auto rank = [](const Placed& p) {
    return !p.fresh ? 0 : p.via == ContextVia::queries ? 1 : p.via == ContextVia::keys ? 2 : 3;
  };
  std::stable_sort(placed_.begin(), placed_.end(), [&](const Placed& a, const Placed& b) { return rank(a) < rank(b); });
}

void PlanBuilder::add_rows(std::span<const SequenceStep> steps, int32_t total) {
  const BlockLayout& layout = options_.layout;
  const BlockLayout replicated = layout.replicated();
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
      const int64_t pos = step.cached + i;
      token_src_[r] = step.tokens[static_cast<size_t>(i)];
      positions_[r] = static_cast<int32_t>(pos);
      seq_of_[r] = step.sequence;
      if (placed.fresh) {
        fresh_begin_[r] = row - first_fresh;
        fresh_end_[r] = row - first_fresh + i + 1;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        const size_t at = static_cast<size_t>(rank) * t + r;
        slots_[at] = static_cast<int32_t>(layout.slot(step.table, pos, rank));
        slots_[w * t + at] = static_cast<int32_t>(replicated.slot(step.table, pos, 0));
        const Range keys = step.decode ? layout.shard.visible_keys(pos, ShardLayout::kNoWindow, rank)
                                       : Range{0, layout.shard.local_count(step.cached, rank)};
        ctx_begin_[at] = static_cast<int32_t>(keys.begin);
        ctx_end_[at] = static_cast<int32_t>(keys.end);
      }
    }
    row += n;
  }
  if (row < total) {
    if (groups_.empty()) groups_.push_back({.begin = 0, .end = 0, .via = ContextVia::queries, .fresh = false});
    groups_.back().end = total;
  }
}

void PlanBuilder::add_waves(std::span<const SequenceStep> steps) {
  const BlockLayout& layout = options_.layout;
  const int ranks = layout.shard.ranks;
  waves_.clear();
  wave_begin_.clear();
  wave_end_.clear();
  for (auto& slots : gather_slots_) slots.clear();

  // Windows of the sequences' shards, packed until a wave is full. `Item` is one window.
  struct Item {
    size_t index;
    int64_t local, rows, at;
  };
  std::vector<Item> items;
  ContextWave wave;
  const auto close = [&] {
    if (items.empty()) return;
    wave.row_begin = first_row_[items.front().index];
    const SequenceStep& last = steps[items.back().index];
    wave.row_end = first_row_[items.back().index] + static_cast<int32_t>(last.tokens.size());
    wave.slots_at = static_cast<int32_t>(gather_slots_[0].size());
    wave.ranges_at = static_cast<int32_t>(wave_begin_.size());
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Item& item : items) {
        const SequenceStep& step = steps[item.index];
        const int64_t held = layout.shard.local_count(step.cached, rank);
        for (int64_t j = item.local; j < item.local + item.rows; ++j)
          gather_slots_[static_cast<size_t>(rank)].push_back(j < held ? static_cast<int32_t>(layout.local_slot(step.table, j))
                                                                      : -1);
        const auto real = static_cast<int32_t>(std::clamp<int64_t>(held - item.local, 0, item.rows));
        const auto begin = static_cast<int32_t>(rank * int64_t{wave.rows} + item.at);
        wave_begin_.insert(wave_begin_.end(), step.tokens.size(), begin);
        wave_end_.insert(wave_end_.end(), step.tokens.size(), begin + real);
      }
    }
    waves_.push_back(wave);
    items.clear();
    wave = {};
  };
  for (const Placed& placed : placed_) {
    if (placed.via != ContextVia::keys) continue;
    const int64_t padded = layout.shard.padded_count(steps[placed.index].cached);
    for (int64_t local = 0; local < padded;) {
      const int64_t rows = std::min(padded - local, options_.context_rows - wave.rows);
      items.push_back({.index = placed.index, .local = local, .rows = rows, .at = wave.rows});
      wave.rows += static_cast<int32_t>(rows);
      local += rows;
      if (wave.rows == options_.context_rows) close();
    }
  }
  close();
  gather_flat_.clear();
  for (const auto& slots : gather_slots_) gather_flat_.insert(gather_flat_.end(), slots.begin(), slots.end());
}

void PlanBuilder::add_sampling(std::span<const SequenceStep> steps) {
  first_logit_.assign(steps.size(), 0);
  sampling_.clear();
  for (const Placed& placed : placed_) {
    const SequenceStep& step = steps[placed.index];
    first_logit_[placed.index] = static_cast<int32_t>(sampling_.size());
    if (step.logits == SequenceStep::Logits::none) continue;
    const auto n = static_cast<int32_t>(step.tokens.size());
    for (int32_t i = step.logits == SequenceStep::Logits::all ? 0 : n - 1; i < n; ++i) {
      const auto target = static_cast<size_t>(static_cast<int32_t>(sampling_.size()) - first_logit_[placed.index]);
      sampling_.push_back({.row = first_row_[placed.index] + i,
                           .target = target < step.targets.size() ? step.targets[target] : -1,
                           .position = static_cast<int32_t>(step.cached + i)});
    }
  }
}

}  // namespace weft

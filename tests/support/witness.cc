#include "support/witness.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace weft::test {
namespace {

constexpr size_t kMostFaults = 8;
constexpr int32_t kPoisonEntry = -1;

/// A finaliser whose every output bit depends on every input bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t mix(uint64_t a, uint64_t b) { return mix(mix(a) + b); }
uint64_t bits(float value) {
  uint32_t word = 0;
  std::memcpy(&word, &value, sizeof word);
  return value == 0 ? 0 : word;
}
/// Never the sum of anything that was stored.
WitnessRow poison(uint64_t at) { return {mix(at, 1), mix(at, 2), mix(at, 3)}; }

bool is_allowed(std::span<const uint32_t> mask, int32_t token) {
  return mask.empty() || (mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1u) != 0;
}

/// Everything of a row that may change the token.
uint64_t digest(const WitnessSampling& sampling, int32_t vocab) {
  const SamplingRow& row = sampling.row;
  uint64_t sum = 0;
  for (const PenaltyToken& token : sampling.penalty_tokens) {
    const bool repeated = row.repetition_penalty != 1 && (token.in_prompt != 0 || token.generated > 0);
    const uint64_t effect = mix(repeated ? bits(row.repetition_penalty) : 0,
                                mix(row.frequency_penalty != 0 ? static_cast<uint64_t>(token.generated) : 0,
                                    row.presence_penalty != 0 && token.generated > 0 ? bits(row.presence_penalty) : 0));
    static const uint64_t none = mix(0, mix(0, 0));
    if (effect != none) sum = mix(sum, mix(effect, static_cast<uint64_t>(token.token) + (bits(row.frequency_penalty) << 32)));
  }
  for (const LogitBias& bias : sampling.biases)
    if (bias.bias != 0) sum = mix(sum, mix(bits(bias.bias), static_cast<uint64_t>(bias.token)));
  for (int32_t token = 0; token < vocab && !sampling.allowed.empty(); ++token)
    if (!is_allowed(sampling.allowed, token)) sum = mix(sum, static_cast<uint64_t>(token));
  if (row.temperature == 0) return sum;
  const uint64_t key = mix(row.seed, mix(static_cast<uint64_t>(row.choice), static_cast<uint64_t>(row.position)));
  const uint64_t filters = mix(mix(bits(row.top_p), bits(row.min_p)), static_cast<uint64_t>(row.top_k));
  return mix(mix(sum, bits(row.temperature)), mix(key, filters));
}

}  // namespace

WitnessRow witness_row(int64_t position, int32_t token) {
  const auto p = static_cast<uint64_t>(position);
  return {.place = mix(p, 11), .pair = mix(p, mix(static_cast<uint64_t>(token), 12)), .state = 0};
}
uint64_t witness_state(uint64_t pairs) { return mix(pairs, 13); }
uint64_t witness_hidden(uint64_t states) { return mix(states, 14); }

void WitnessPath::feed(int32_t token) {
  seen_.pair += witness_row(length_++, token).pair;
  seen_.state += witness_state(seen_.pair);
}

int32_t witness_token(uint64_t hidden, const WitnessSampling& sampling, int32_t vocab) {
  const auto possible = [&](int32_t token) {
    return is_allowed(sampling.allowed, token) && std::ranges::none_of(sampling.biases, [&](const LogitBias& bias) {
             return bias.token == token && bias.bias == -std::numeric_limits<float>::infinity();
           });
  };
  const auto start = static_cast<int32_t>(mix(hidden, digest(sampling, vocab)) % static_cast<uint64_t>(vocab));
  for (int32_t i = 0; i < vocab; ++i)
    if (const int32_t token = (start + i) % vocab; possible(token)) return token;
  return -1;
}

float witness_log_prob(uint64_t hidden, int32_t token) {
  return -static_cast<float>(mix(hidden, static_cast<uint64_t>(token)) % 4096) / 256;
}
int32_t witness_top_id(uint64_t hidden, int32_t rank, int32_t vocab) {
  return static_cast<int32_t>((mix(hidden, 15) + static_cast<uint64_t>(rank)) % static_cast<uint64_t>(vocab));
}

Witness::Witness(const Limits& limits) : limits_(limits) {
  const BlockLayout& layout = limits.layout;
  const auto virtual_rows = static_cast<size_t>(limits.blocks * layout.virtual_tokens());
  for (int r = 0; r < layout.shard.ranks; ++r) {
    Rank rank;
    rank.sharded.resize(static_cast<size_t>(limits.blocks * layout.block_tokens));
    rank.replicated.resize(virtual_rows);
    for (auto* plane : {&rank.sharded, &rank.replicated})
      for (size_t i = 0; i < plane->size(); ++i) (*plane)[i] = poison(i + plane->size() * static_cast<size_t>(r));
    rank.tables.assign(static_cast<size_t>(limits.sequences * limits.blocks_per_sequence), kPoisonEntry);
    ranks_.push_back(std::move(rank));
  }
  places_.push_back(0);
  for (int64_t i = 0; i < limits.blocks_per_sequence * layout.virtual_tokens(); ++i)
    places_.push_back(places_.back() + witness_row(i, 0).place);
}

template <typename... Args>
void Witness::fault(const char* format, const Args&... args) {
  if (faults_.size() < kMostFaults)
    faults_.push_back(fmt::format("step {}: ", steps_) + fmt::format(fmt::runtime(format), args...));
}

const StepResult& Witness::run(const StepPlan& plan) {
  if (steps_ == fail_at_) throw SystemError("rank 0 is lost");
  check_plan(plan);
  update_tables(plan);
  copy_blocks(plan);
  // Two layers. Of each, all rows are stored before any row looks.
  const auto rows = static_cast<size_t>(plan->rows);
  rows_.resize(rows);
  for (size_t t = 0; t < rows; ++t) {
    int32_t token = plan[plan->token_src][t];
    if (token < 0) {
      const auto sample = static_cast<size_t>(-1 - int64_t{token});
      if (sample >= result_.ids.size()) fault("row {} wants sample {} of {}", t, sample, result_.ids.size());
      token = sample < result_.ids.size() ? result_.ids[sample] : -1;
    }
    rows_[t] = witness_row(plan[plan->positions][t], token);
  }
  append(plan);
  attend(plan, first_);
  check_rows(plan, first_);
  for (size_t t = 0; t < rows; ++t) rows_[t].state = witness_state(first_[t].pair);
  append(plan);
  attend(plan, second_);
  attend_replicated(plan);
  sample(plan, second_);
  checksum_ = mix(checksum_, plan->checksum);
  ++steps_;
  return result_;
}

void Witness::check_plan(const StepPlan& plan) {
  const int ranks = limits_.layout.shard.ranks;
  const auto rows = static_cast<size_t>(std::max(0, plan->rows)), w = static_cast<size_t>(ranks);
  if (plan->bytes != plan.bytes().size() || plan->checksum != plan.compute_checksum()) fault("the plan is damaged");
  if (plan->ranks != ranks) fault("a plan of {} ranks", plan->ranks);
  if (plan->rows < 1 || plan->rows > limits_.rows) fault("{} rows", plan->rows);
  WEFT_CHECK(plan->token_src.count == rows && plan->positions.count == rows && plan->seq_of.count == rows);
  WEFT_CHECK(plan->slots.count == 2 * w * rows && plan->ctx_begin.count == w * rows && plan->ctx_end.count == w * rows);
  WEFT_CHECK(plan->fresh_begin.count == rows && plan->fresh_end.count == rows);
  WEFT_CHECK(plan->gather_slots.count % w == 0 && plan->wave_begin.count == plan->wave_end.count);

  // Groups cover the rows; the kinds come in the order in which ranks go through them.
  views_.assign(rows, {});
  first_fresh_ = plan->rows;
  int32_t next = 0, kind = 0;
  for (const RowGroup& group : plan[plan->groups]) {
    const int32_t now = !group.fresh ? 0 : group.via == ContextVia::queries ? 1 : group.via == ContextVia::keys ? 2 : 3;
    if (group.begin != next || group.end < group.begin || group.end > plan->rows || now < kind)
      fault("group [{}, {}) after row {}", group.begin, group.end, next);
    if (!group.fresh && group.via != ContextVia::queries) fault("rows [{}, {}) see nothing", group.begin, group.end);
    if (group.fresh) first_fresh_ = std::min(first_fresh_, group.begin);
    for (int32_t t = group.begin; t < std::min(group.end, plan->rows); ++t)
      views_[static_cast<size_t>(t)] = {group.via, group.fresh};
    next = group.end;
    kind = now;
  }
  if (next != plan->rows) fault("groups end at row {} of {}", next, plan->rows);
  for (const int32_t sequence : plan[plan->seq_of]) WEFT_CHECK(sequence >= 0 && sequence < limits_.sequences);
}

void Witness::update_tables(const StepPlan& plan) {
  for (const TableUpdate& update : plan[plan->table_updates]) {
    WEFT_CHECK(update.sequence >= 0 && update.sequence < limits_.sequences) << update.sequence;
    WEFT_CHECK(update.ordinal >= 0 && update.ordinal < limits_.blocks_per_sequence) << update.ordinal;
    WEFT_CHECK(update.block >= 0 && update.block < limits_.blocks) << update.block;
    for (Rank& rank : ranks_)
      rank.tables[static_cast<size_t>(update.sequence * limits_.blocks_per_sequence + update.ordinal)] = update.block;
  }
}

void Witness::copy_blocks(const StepPlan& plan) {
  const BlockLayout& layout = limits_.layout;
  const auto copy_rows = [](std::vector<WitnessRow>& plane, int64_t source, int64_t target, int64_t rows) {
    std::copy_n(plane.begin() + source, rows, plane.begin() + target);
  };
  for (const BlockCopy& copy : plan[plan->copies]) {
    WEFT_CHECK(copy.source >= 0 && copy.source < limits_.blocks && copy.target >= 0 && copy.target < limits_.blocks);
    WEFT_CHECK(copy.tokens > 0 && copy.tokens <= layout.virtual_tokens()) << copy.tokens;
    if (copy.source == copy.target) fault("block {} is copied to itself", copy.source);
    for (int r = 0; r < layout.shard.ranks; ++r) {
      Rank& rank = ranks_[static_cast<size_t>(r)];
      const int64_t rows = layout.block_tokens, virtual_rows = layout.virtual_tokens();
      copy_rows(rank.sharded, copy.source * rows, copy.target * rows, layout.shard.local_count(copy.tokens, r));
      copy_rows(rank.replicated, copy.source * virtual_rows, copy.target * virtual_rows, copy.tokens);
    }
  }
}

bool Witness::stored(const StepPlan& plan, int64_t row) const {
  for (int r = 0; r < limits_.layout.shard.ranks; ++r)
    if (plan.slots_of(0, r)[static_cast<size_t>(row)] >= 0) return true;
  return false;
}

void Witness::append(const StepPlan& plan) {
  for (int r = 0; r < limits_.layout.shard.ranks; ++r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    for (auto& [layout, plane] : {std::pair{0, &rank.sharded}, std::pair{1, &rank.replicated}}) {
      const std::span<const int32_t> slots = plan.slots_of(layout, r);
      for (size_t t = 0; t < slots.size(); ++t) {
        if (slots[t] < 0) continue;
        WEFT_CHECK_LT(static_cast<size_t>(slots[t]), plane->size()) << "slot of row " << t;
        (*plane)[static_cast<size_t>(slots[t])] = rows_[t];
      }
    }
  }
}

/// Sum of the keys [begin, end) of a sequence in one plane of one rank.
WitnessRow Witness::paged(const std::vector<WitnessRow>& plane, const Rank& rank, int64_t block_rows, int32_t sequence,
                          int64_t begin, int64_t end) {
  WitnessRow sum;
  const int32_t* table = rank.tables.data() + sequence * limits_.blocks_per_sequence;
  while (begin < end) {
    const int64_t ordinal = begin / block_rows, until = std::min(end, (ordinal + 1) * block_rows);
    if (ordinal >= limits_.blocks_per_sequence || table[ordinal] == kPoisonEntry) {
      fault("sequence {} has no block {}", sequence, ordinal);
      return poison(static_cast<uint64_t>(begin));
    }
    const WitnessRow* rows = plane.data() + table[ordinal] * block_rows - ordinal * block_rows;
    for (; begin < until; ++begin) sum += rows[begin];
  }
  return sum;
}

void Witness::attend(const StepPlan& plan, std::vector<WitnessRow>& seen) {
  const int ranks = limits_.layout.shard.ranks;
  const auto rows = static_cast<size_t>(plan->rows);
  const auto begins = plan[plan->ctx_begin], ends = plan[plan->ctx_end];
  const auto sequences = plan[plan->seq_of];
  seen.assign(rows, {});
  WitnessRow context;
  for (size_t t = 0; t < rows; ++t) {
    if (views_[t].via == ContextVia::queries) {
      const auto as_before = [&] {
        if (t == 0 || views_[t - 1].via != ContextVia::queries || sequences[t] != sequences[t - 1]) return false;
        for (size_t at = t; at < begins.size(); at += rows)
          if (begins[at] != begins[at - 1] || ends[at] != ends[at - 1]) return false;
        return true;
      };
      if (!as_before()) {
        context = {};
        for (int r = 0; r < ranks; ++r) {
          const Rank& rank = ranks_[static_cast<size_t>(r)];
          const size_t at = static_cast<size_t>(r) * rows + t;
          context += paged(rank.sharded, rank, limits_.layout.block_tokens, sequences[t], begins[at], ends[at]);
        }
      }
      seen[t] += context;
    }
    if (!views_[t].fresh) continue;
    const int32_t begin = first_fresh_ + plan[plan->fresh_begin][t], end = first_fresh_ + plan[plan->fresh_end][t];
    WEFT_CHECK(begin >= first_fresh_ && end <= plan->rows) << "fresh rows of row " << t;
    for (int32_t i = begin; i < end; ++i) seen[t] += rows_[static_cast<size_t>(i)];
  }
  attend_waves(plan, seen);
}

void Witness::attend_waves(const StepPlan& plan, std::vector<WitnessRow>& seen) {
  const int ranks = limits_.layout.shard.ranks;
  for (const ContextWave& wave : plan[plan->waves]) {
    WEFT_CHECK(wave.rows > 0 && wave.rows <= limits_.context_rows) << wave.rows;
    WEFT_CHECK(wave.row_begin >= 0 && wave.row_begin < wave.row_end && wave.row_end <= plan->rows);
    received_.clear();
    for (int r = 0; r < ranks; ++r) {
      const Rank& rank = ranks_[static_cast<size_t>(r)];
      for (const int32_t slot :
           plan.of_rank(plan->gather_slots, r).subspan(static_cast<size_t>(wave.slots_at), static_cast<size_t>(wave.rows)))
        received_.push_back(slot < 0 ? poison(received_.size()) : rank.sharded.at(static_cast<size_t>(slot)));
    }
    const int32_t n = wave.row_end - wave.row_begin;
    WitnessRow sum;
    for (int32_t i = 0; i < n; ++i) {
      const auto at = [&](int rank, int32_t row) { return static_cast<size_t>(wave.ranges_at + rank * n + row); };
      const auto begins = plan[plan->wave_begin], ends = plan[plan->wave_end];
      const auto as_before = [&] {
        for (int r = 0; r < ranks && i > 0; ++r)
          if (begins[at(r, i)] != begins[at(r, i - 1)] || ends[at(r, i)] != ends[at(r, i - 1)]) return false;
        return i > 0;
      };
      if (!as_before()) {
        sum = {};
        for (int r = 0; r < ranks; ++r)
          for (int32_t j = begins[at(r, i)]; j < ends[at(r, i)]; ++j) sum += received_.at(static_cast<size_t>(j));
      }
      const auto t = static_cast<size_t>(wave.row_begin + i);
      if (views_[t].via != ContextVia::keys) fault("row {} is in a wave", t);
      seen[t] += sum;
    }
  }
}

/// The replicated plane holds on one rank what the sharded plane holds on all: rows see the same through either. Each row looks
/// on one rank, another one in each step.
void Witness::attend_replicated(const StepPlan& plan) {
  const int ranks = limits_.layout.shard.ranks;
  const auto rows = static_cast<size_t>(plan->rows);
  WitnessRow sharded, replicated;
  for (size_t t = 0; t < rows; ++t) {
    if (!stored(plan, static_cast<int64_t>(t)) || views_[t].via == ContextVia::none) continue;
    const int32_t sequence = plan[plan->seq_of][t];
    int64_t length = 0;
    bool as_before = t > 0 && sequence == plan[plan->seq_of][t - 1];
    for (size_t at = t; at < rows * static_cast<size_t>(ranks); at += rows) {
      length += plan[plan->ctx_end][at];
      as_before = as_before && plan[plan->ctx_end][at] == plan[plan->ctx_end][at - 1];
    }
    if (as_before) continue;
    sharded = {};
    for (int r = 0; r < ranks; ++r) {
      const Rank& rank = ranks_[static_cast<size_t>(r)];
      const int32_t end = plan[plan->ctx_end][static_cast<size_t>(r) * rows + t];
      sharded += paged(rank.sharded, rank, limits_.layout.block_tokens, sequence, 0, end);
    }
    const Rank& rank = ranks_[(t + static_cast<size_t>(steps_)) % ranks_.size()];
    replicated = paged(rank.replicated, rank, limits_.layout.virtual_tokens(), sequence, 0, length);
    if (sharded.pair != replicated.pair || sharded.state != replicated.state)
      fault("row {}: the replicated plane of {} tokens differs from the sharded one", t, length);
  }
}

void Witness::check_rows(const StepPlan& plan, const std::vector<WitnessRow>& seen) {
  const BlockLayout& layout = limits_.layout;
  for (size_t t = 0; t < seen.size(); ++t) {
    const int64_t position = plan[plan->positions][t];
    if (!stored(plan, static_cast<int64_t>(t))) {
      if (seen[t].place != 0) fault("padding row {} sees keys", t);
      continue;
    }
    for (int r = 0; r < layout.shard.ranks; ++r) {
      if ((plan.slots_of(0, r)[t] >= 0) != (layout.shard.owner(position) == r))
        fault("row {}, position {}: slot {} on rank {}", t, position, plan.slots_of(0, r)[t], r);
      if (plan.slots_of(1, r)[t] < 0) fault("row {}: not in the replicated plane of rank {}", t, r);
    }
    if (position < 0 || position + 1 >= static_cast<int64_t>(places_.size()) ||
        seen[t].place != places_[static_cast<size_t>(position + 1)])
      fault("row {}, sequence {}: does not see each position up to {} once", t, plan[plan->seq_of][t], position);
  }
}

void Witness::sample(const StepPlan& plan, const std::vector<WitnessRow>& seen) {
  const std::span<const SamplingRow> wanted = plan[plan->sampling];
  const size_t n = wanted.size(), words = static_cast<size_t>((limits_.vocab + 31) / 32);
  const auto top = static_cast<size_t>(plan->max_top_log_probs);
  result_.ids.assign(n, 0);
  result_.accepted.assign(n, 1);
  result_.log_probs.assign(plan->want_log_probs ? n : 0, 0);
  result_.target_log_probs.assign(plan->want_log_probs ? n : 0, 0);
  result_.top_ids.assign(n * top, -1);
  result_.top_log_probs.assign(n * top, -std::numeric_limits<float>::infinity());
  const auto in = [](const auto& list, PlanSlice slice) {
    return list.subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.count));
  };
  for (size_t i = 0; i < n; ++i) {
    const SamplingRow& row = wanted[i];
    WEFT_CHECK(row.row >= 0 && row.row < plan->rows) << "sampling row " << i;
    if (!stored(plan, row.row)) fault("sampling row {} is padding", i);
    if (row.position != plan[plan->positions][static_cast<size_t>(row.row)] + 1)
      fault("sampling row {} is for position {}", i, row.position);
    WitnessSampling sampling{.row = row,
                             .penalty_tokens = in(plan[plan->penalty_tokens], row.penalty_tokens),
                             .biases = in(plan[plan->biases], row.biases),
                             .allowed = {}};
    if (std::ranges::adjacent_find(sampling.penalty_tokens, std::ranges::greater_equal(), &PenaltyToken::token) !=
        sampling.penalty_tokens.end())
      fault("penalty tokens of sampling row {} are not ascending", i);
    if (std::ranges::adjacent_find(sampling.biases, std::ranges::greater_equal(), &LogitBias::token) != sampling.biases.end())
      fault("biases of sampling row {} are not ascending", i);
    if (row.allowed_mask >= 0)
      sampling.allowed = plan[plan->token_masks].subspan(static_cast<size_t>(row.allowed_mask) * words, words);
    const uint64_t hidden = witness_hidden(seen[static_cast<size_t>(row.row)].state);
    const int32_t token = witness_token(hidden, sampling, limits_.vocab);
    result_.ids[i] = token;
    if (plan->want_log_probs) {
      result_.log_probs[i] = witness_log_prob(hidden, token);
      result_.target_log_probs[i] = witness_log_prob(hidden, row.target);
    }
    if (row.top_log_probs > plan->max_top_log_probs) fault("sampling row {} wants {} most probable", i, row.top_log_probs);
    for (int32_t k = 0; k < row.top_log_probs; ++k) {
      const size_t at = i * top + static_cast<size_t>(k);
      result_.top_ids[at] = witness_top_id(hidden, k, limits_.vocab);
      result_.top_log_probs[at] = witness_log_prob(hidden, result_.top_ids[at]);
    }
  }
  result_.checksum = 0xcbf29ce484222325u;
  for (const int32_t id : result_.ids) result_.checksum = (result_.checksum ^ static_cast<uint32_t>(id)) * 0x100000001b3u;
  result_.seconds = limits_.step_seconds + limits_.row_seconds * plan->rows;
}

}  // namespace weft::test

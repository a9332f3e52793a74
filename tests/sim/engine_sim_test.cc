// The whole engine but for its threads and its arithmetic, from a seed: who comes and goes, how little memory there is, and
// where the KV lies. Whatever happens, every request gets the tokens that the witness model gives it when it is read alone.

#include "support/engine_sim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/prop.h"
#include "support/witness.h"

namespace weft::test {
namespace {

using ::testing::IsEmpty;

constexpr int kEvents = 2000;
constexpr int kRanks[] = {1, 2, 3, 4, 8};

/// WEFT_SIM_SEED=N replays one seed.
std::vector<uint64_t> seeds() {
  if (const char* only = std::getenv("WEFT_SIM_SEED")) return {std::strtoull(only, nullptr, 10)};
  const char* full = std::getenv("WEFT_FULL");
  std::vector<uint64_t> all(full != nullptr && *full == '1' ? 1000 : 50);
  for (size_t i = 0; i < all.size(); ++i) all[i] = i + 1;
  return all;
}
std::string replay(uint64_t seed) { return "replay with WEFT_SIM_SEED=" + std::to_string(seed); }

/// What was exercised at all: a simulation in which nothing happens shows nothing.
struct Exercised {
  int64_t steps = 0, rows = 0, preemptions = 0, copies = 0, hit_tokens = 0, waves = 0, tokens = 0;
  void add(const SimRun& run) {
    steps += run.steps;
    rows += run.rows;
    preemptions += run.preemptions;
    copies += run.copies;
    hit_tokens += run.hit_tokens;
    waves += run.waves;
    for (const auto& stream : run.streams)
      if (stream) tokens += static_cast<int64_t>(stream->events().size());
  }
};

/// The same tokens as another run, so far as both gave any; whole answers where nobody broke them off.
void expect_same_answers(const SimScript& script, const SimRun& a, const SimRun& b) {
  for (size_t i = 0; i < script.requests.size(); ++i) {
    const auto choices = static_cast<size_t>(script.requests[i].request.choices);
    std::vector<std::vector<int32_t>> of_a(choices), of_b(choices);
    for (const TokenEvent& event : a.streams[i]->events())
      if (event.token >= 0) of_a[static_cast<size_t>(event.choice)].push_back(event.token);
    for (const TokenEvent& event : b.streams[i]->events())
      if (event.token >= 0) of_b[static_cast<size_t>(event.choice)].push_back(event.token);
    for (size_t k = 0; k < choices; ++k) {
      if (script.requests[i].cancelled || script.requests[i].request.timeout_us > 0) {
        const size_t both = std::min(of_a[k].size(), of_b[k].size());
        of_a[k].resize(both);
        of_b[k].resize(both);
      }
      ASSERT_EQ(of_a[k], of_b[k]) << "request " << i << ", choice " << k;
    }
  }
}

TEST(EngineSim, EveryRequestGetsItsTokensWhateverTheRanksTheMemoryAndTheCompany) {
  Exercised exercised;
  for (const uint64_t seed : seeds()) {
    const SimScript script = make_sim_script(seed, kEvents);
    std::optional<SimRun> first;
    for (const int ranks : kRanks) {
      SCOPED_TRACE(replay(seed) + ", W = " + std::to_string(ranks));
      SimRun run = run_sim(script, make_sim_layout(script, ranks));
      ASSERT_THAT(run.wrong, IsEmpty());
      ASSERT_EQ(run.allocations, 0) << "taken in steps";
      exercised.add(run);
      if (first)
        expect_same_answers(script, *first, run);
      else
        first = std::move(run);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%ld steps, %ld rows, %ld tokens; %ld preemptions, %ld copied blocks, %ld tokens found in the cache, %ld waves\n",
              exercised.steps, exercised.rows, exercised.tokens, exercised.preemptions, exercised.copies, exercised.hit_tokens,
              exercised.waves);
  if (std::getenv("WEFT_SIM_SEED") != nullptr) return;
  for (const int64_t count : {exercised.preemptions, exercised.copies, exercised.hit_tokens, exercised.waves})
    EXPECT_GT(count, 1000);
}

TEST(EngineSim, TheSameScriptGivesTheSamePlans) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const SimScript script = make_sim_script(seed, 500);
    const SimLayout layout = make_sim_layout(script, 2);
    const SimRun a = run_sim(script, layout), b = run_sim(script, layout);
    EXPECT_EQ(a.steps, b.steps) << replay(seed);
    EXPECT_EQ(a.checksum, b.checksum) << replay(seed);
  }
}

TEST(EngineSim, WhenARankIsLostEveryRequestEndsWithTheReason) {
  for_each_case(
      [](Gen& gen) {
        SimScript script = make_sim_script(gen.bits() % 100000, 300);
        script.fail_at = gen.in(0, 100);
        EXPECT_THAT(run_sim(script, make_sim_layout(script, gen.pick({1, 2, 3}))).wrong, IsEmpty());
      },
      20);
}

/// One request after the other in a pool that holds them all: what is found is exactly what is there.
TEST(EngineSim, AHitIsTheLongestSharedBeginningToTheToken) {
  for_each_case(
      [](Gen& gen) {
        SimScript script = make_sim_script(gen.bits() % 100000, 0);
        script.max_model_len = 60;
        script.spare_blocks = 2000;
        script.prefix_caching = true;
        const std::vector<int32_t> document = [&] {
          std::vector<int32_t> tokens(60);
          for (int32_t& token : tokens) token = static_cast<int32_t>(gen.in(0, 3));
          return tokens;
        }();
        for (size_t i = 0; i < 12; ++i) {
          SimRequest sim;
          const auto n = gen.in(1, 50);
          sim.request.prompt.assign(document.begin(), document.begin() + n);
          for (auto change = gen.in(0, 2); change > 0; --change)
            sim.request.prompt[static_cast<size_t>(gen.in(0, n - 1))] = static_cast<int32_t>(gen.in(0, 3));
          sim.request.sampling.temperature = 0;
          sim.request.max_tokens = gen.in(0, 10);
          expect_answers(sim, script.vocab, script.end_tokens);
          script.requests.push_back(sim);
          script.events.push_back({.kind = SimScript::Event::Kind::submit, .request = i});
          script.events.insert(script.events.end(), 80, {});
        }
        const SimRun run = run_sim(script, make_sim_layout(script, gen.pick({1, 2, 3, 4, 8})));
        ASSERT_THAT(run.wrong, IsEmpty());
        std::vector<std::vector<int32_t>> stored;
        for (size_t i = 0; i < script.requests.size(); ++i) {
          const SimRequest& sim = script.requests[i];
          int64_t most = 0;
          for (const auto& text : stored) most = std::max(most, common_tokens(text, sim.request.prompt));
          ASSERT_EQ(run.streams[i]->cached_tokens(), std::min(most, static_cast<int64_t>(sim.request.prompt.size()) - 1));
          stored.push_back(sim.request.prompt);
          // The last token of an answer is never fed.
          const auto& answer = sim.answers.front();
          for (size_t k = 0; k + 1 < answer.size(); ++k) stored.back().push_back(answer[k].token);
        }
      },
      30);
}

TEST(EngineSim, TwoPromptsWith150TokensInCommonShare150WithBlocksOf64OnTwoRanks) {
  SimScript script = make_sim_script(1, 0);
  script.max_model_len = 600;
  script.spare_blocks = 20;
  script.prefix_caching = true;
  script.limits.tokens = 64;
  for (size_t i = 0; i < 2; ++i) {
    SimRequest sim;
    for (int32_t k = 0; k < 550; ++k)
      sim.request.prompt.push_back(k < 150 ? k % 37 : static_cast<int32_t>((k + 1 + static_cast<int32_t>(i)) % 38));
    sim.request.sampling.temperature = 0;
    expect_answers(sim, script.vocab, script.end_tokens);
    script.requests.push_back(sim);
    script.events.push_back({.kind = SimScript::Event::Kind::submit, .request = i});
    script.events.insert(script.events.end(), 100, {});
  }
  ASSERT_EQ(common_tokens(script.requests[0].request.prompt, script.requests[1].request.prompt), 150);
  const SimLayout layout{
      .layout = {.shard = {.ranks = 2, .interleave = 1}, .block_tokens = 64}, .blocks = 30, .context_rows = 64};
  const SimRun run = run_sim(script, layout);
  ASSERT_THAT(run.wrong, IsEmpty());
  EXPECT_EQ(run.streams[1]->cached_tokens(), 150);
}

// --- what the simulation notices ---------------------------------------------------------------------------------------------

/// Changes one entry of a plan, if it has one that can be changed so. Returns whether it did.
using Change = std::function<bool(StepPlan& plan, Gen& gen)>;

template <typename T>
T* any_of(
    StepPlan& plan, PlanArray<T> array, Gen& gen, const std::function<bool(const T&)>& fits = [](const T&) { return true; }) {
  std::vector<T*> fitting;
  for (T& entry : plan.edit(array))
    if (fits(entry)) fitting.push_back(&entry);
  return fitting.empty() ? nullptr : fitting[static_cast<size_t>(gen.in(0, static_cast<int64_t>(fitting.size()) - 1))];
}

/// A fault of this kind in every plan, from some step on, is noticed in every simulation in which it can be made.
void expect_noticed(const std::string& what, const Change& change) {
  SCOPED_TRACE(what);
  int simulations = 0;
  for (uint64_t seed = 1; seed <= 80 && simulations < 5; ++seed) {
    SimScript script = make_sim_script(seed, 400);
    for (SimRequest& sim : script.requests) {
      if (!sim.request.sampling.seed) sim.request.sampling.seed = seed;
      expect_answers(sim, script.vocab, script.end_tokens);
    }
    Gen gen(seed);
    const auto from = gen.in(5, 60);
    int64_t step = 0, made = 0;
    const SimRun run = run_sim(script, make_sim_layout(script, static_cast<int>(gen.in(2, 4))), [&](StepPlan& plan) {
      if (++step >= from && change(plan, gen)) ++made;
    });
    if (run.wrong.empty() && made < 5) continue;
    ++simulations;
    EXPECT_FALSE(run.wrong.empty()) << made << " plans were changed and nothing was noticed, " << replay(seed);
  }
  EXPECT_EQ(simulations, 5) << "too few plans could be changed like this";
}

TEST(EngineSim, AWrongEntryOfAPlanIsNoticed) {
  const auto is_stored = [](const int32_t& slot) { return slot >= 0; };
  expect_noticed("a row is stored beside its place", [&](StepPlan& plan, Gen& gen) {
    const auto slot = any_of<int32_t>(plan, plan->slots, gen, is_stored);
    return slot != nullptr && *slot > 0 && (*slot -= 1, true);
  });
  expect_noticed("a row is not stored", [&](StepPlan& plan, Gen& gen) {
    const auto slot = any_of<int32_t>(plan, plan->slots, gen, is_stored);
    return slot != nullptr && (*slot = -1, true);
  });
  expect_noticed("a context of one key more or less", [&](StepPlan& plan, Gen& gen) {
    const auto end = any_of<int32_t>(plan, plan->ctx_end, gen, [](const int32_t& e) { return e > 0; });
    if (end == nullptr) return false;
    // Rows that see their context in waves do not look at these.
    const auto row = static_cast<size_t>(end - plan.edit(plan->ctx_end).data()) % static_cast<size_t>(plan->rows);
    for (const RowGroup& group : plan[plan->groups])
      if (group.via != ContextVia::queries && row >= static_cast<size_t>(group.begin) && row < static_cast<size_t>(group.end))
        return false;
    *end += gen.chance(0.5) ? 1 : -1;
    return true;
  });
  expect_noticed("a chunk sees a row too many or too few", [&](StepPlan& plan, Gen& gen) {
    const auto end = any_of<int32_t>(plan, plan->fresh_end, gen, [](const int32_t& e) { return e > 0; });
    return end != nullptr && (*end -= 1, true);
  });
  expect_noticed("a wrong token", [&](StepPlan& plan, Gen& gen) {
    const auto token = any_of<int32_t>(plan, plan->token_src, gen);
    return *token > 0 && (*token -= 1, true);
  });
  expect_noticed("a wrong position", [&](StepPlan& plan, Gen& gen) {
    *any_of<int32_t>(plan, plan->positions, gen) += 1;
    return true;
  });
  expect_noticed("a table entry is lost", [&](StepPlan& plan, Gen& gen) {
    const auto update = any_of<TableUpdate>(plan, plan->table_updates, gen);
    return update != nullptr && update->block > 0 && (update->block -= 1, true);
  });
  expect_noticed("a copy of too few tokens", [&](StepPlan& plan, Gen& gen) {
    const auto copy = any_of<BlockCopy>(plan, plan->copies, gen, [](const BlockCopy& c) { return c.tokens > 1; });
    return copy != nullptr && (copy->tokens -= 1, true);
  });
  expect_noticed("a copy from another block", [&](StepPlan& plan, Gen& gen) {
    const auto copy = any_of<BlockCopy>(plan, plan->copies, gen);
    return copy != nullptr && copy->source > 0 && (copy->source -= 1, true);
  });
  expect_noticed("a gathered row is padding", [&](StepPlan& plan, Gen& gen) {
    const auto slot = any_of<int32_t>(plan, plan->gather_slots, gen, is_stored);
    return slot != nullptr && (*slot = -1, true);
  });
  expect_noticed("a wave of one key too few", [&](StepPlan& plan, Gen& gen) {
    const auto end = any_of<int32_t>(plan, plan->wave_end, gen, [](const int32_t& e) { return e > 0; });
    return end != nullptr && *end > plan[plan->wave_begin][static_cast<size_t>(end - plan.edit(plan->wave_end).data())] &&
           (*end -= 1, true);
  });
}

TEST(EngineSim, AWrongSamplingRowIsNoticed) {
  const auto draws = [](const SamplingRow& row) { return row.temperature > 0 && row.penalty_tokens.count == 0; };
  expect_noticed("a token was generated once more", [&](StepPlan& plan, Gen& gen) {
    const auto row = any_of<SamplingRow>(
        plan, plan->sampling, gen, [](const SamplingRow& r) { return r.penalty_tokens.count > 0 && r.frequency_penalty != 0; });
    if (row == nullptr) return false;
    plan.edit(plan->penalty_tokens)[static_cast<size_t>(row->penalty_tokens.begin)].generated += 1;
    return true;
  });
  expect_noticed("another bias", [&](StepPlan& plan, Gen& gen) {
    const auto bias = any_of<LogitBias>(plan, plan->biases, gen, [](const LogitBias& b) { return b.bias > -100; });
    return bias != nullptr && (bias->bias += 1, true);
  });
  expect_noticed("another key of the random numbers", [&](StepPlan& plan, Gen& gen) {
    const auto row = any_of<SamplingRow>(plan, plan->sampling, gen, draws);
    return row != nullptr && (row->choice += 1, true);
  });
  expect_noticed("another top_k", [&](StepPlan& plan, Gen& gen) {
    const auto row = any_of<SamplingRow>(plan, plan->sampling, gen, draws);
    return row != nullptr && (row->top_k += 1, true);
  });
}

}  // namespace
}  // namespace weft::test

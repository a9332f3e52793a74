#include "support/engine_sim.h"

#include <algorithm>
#include <limits>
#include <map>

#include "support/allocations.h"
#include "support/prop.h"
#include "support/witness.h"

namespace weft::test {
namespace {

using Event = SimScript::Event;

std::vector<uint32_t> mask_of(const std::vector<int32_t>& tokens, int32_t vocab) {
  std::vector<uint32_t> mask(tokens.empty() ? 0 : static_cast<size_t>(vocab + 31) / 32);
  for (const int32_t token : tokens) mask[static_cast<size_t>(token / 32)] |= uint32_t{1} << (token % 32);
  return mask;
}

/// One answer, token by token, the lists made anew each time from their definitions.
std::vector<SimRequest::Token> answer(const Request& request, int32_t choice, int32_t vocab,
                                      const std::vector<int32_t>& end_tokens) {
  const SamplingParams& params = request.sampling;
  std::vector<int32_t> ending = request.stop_tokens;
  if (!request.ignore_eos) ending.insert(ending.end(), end_tokens.begin(), end_tokens.end());
  const auto ends = [&](int32_t token) { return std::ranges::find(ending, token) != ending.end(); };
  const std::vector<uint32_t> allowed = mask_of(params.allowed_tokens, vocab);

  WitnessPath path;
  for (const int32_t token : request.prompt) path.feed(token);
  std::vector<SimRequest::Token> tokens;
  std::map<int32_t, int32_t> generated;
  while (static_cast<int64_t>(tokens.size()) < request.max_tokens) {
    std::map<int32_t, PenaltyToken> penalties;
    for (const int32_t token : request.prompt) penalties[token] = {.token = token, .generated = 0, .in_prompt = 1};
    for (const auto& [token, times] : generated) {
      penalties[token].token = token;
      penalties[token].generated = times;
    }
    std::map<int32_t, float> biases;
    for (const LogitBias& bias : params.logit_bias) biases[bias.token] = bias.bias;
    if (static_cast<int64_t>(tokens.size()) < request.min_tokens)
      for (const int32_t token : ending) biases[token] = -std::numeric_limits<float>::infinity();
    std::vector<PenaltyToken> penalty_list;
    for (const auto& [token, penalty] : penalties) penalty_list.push_back(penalty);
    std::vector<LogitBias> bias_list;
    for (const auto& [token, bias] : biases) bias_list.push_back({.token = token, .bias = bias});
    const WitnessSampling sampling{.row = {.seed = params.seed.value_or(0),
                                           .choice = choice,
                                           .position = static_cast<int32_t>(path.length()),
                                           .temperature = params.temperature,
                                           .top_k = params.top_k,
                                           .top_p = params.top_p,
                                           .min_p = params.min_p,
                                           .repetition_penalty = params.repetition_penalty,
                                           .frequency_penalty = params.frequency_penalty,
                                           .presence_penalty = params.presence_penalty,
                                           .penalty_tokens = {},
                                           .biases = {}},
                                   .penalty_tokens = penalty_list,
                                   .biases = bias_list,
                                   .allowed = allowed};
    const bool forced = !request.forced_ids.empty();
    const int32_t token = forced ? request.forced_ids[tokens.size()] : witness_token(path.hidden(), sampling, vocab);
    tokens.push_back({.token = token, .finish = FinishReason::none, .hidden = path.hidden()});
    ++generated[token];
    if (!forced && ends(token)) {
      tokens.back().finish = FinishReason::stop;
      return tokens;
    }
    path.feed(token);
  }
  if (tokens.empty()) tokens.push_back({.token = -1, .finish = FinishReason::length, .hidden = 0});
  tokens.back().finish = FinishReason::length;
  return tokens;
}

/// Documents that prompts begin with, and everything that was asked before: so prompts share beginnings of all lengths.
class PromptMaker {
 public:
  PromptMaker(Gen& gen, int64_t longest, int32_t vocab) : gen_(gen), longest_(longest), vocab_(vocab) {
    for (int i = 0; i < 3; ++i) known_.push_back(noise(longest));
  }
  std::vector<int32_t> next(int64_t most) {
    const auto& base = known_[static_cast<size_t>(gen_.in(0, static_cast<int64_t>(known_.size()) - 1))];
    std::vector<int32_t> prompt = base;
    const auto size = static_cast<int64_t>(prompt.size());
    if (!gen_.chance(0.3) || size > most) prompt.resize(static_cast<size_t>(gen_.in(0, std::min(size, most))));
    const int64_t left = most - static_cast<int64_t>(prompt.size());
    for (const int32_t token : noise(gen_.chance(0.3) ? gen_.in(0, left) : gen_.in(0, std::min<int64_t>(left, 3))))
      prompt.push_back(token);
    if (prompt.empty()) prompt = noise(1);
    return prompt;
  }
  void remember(std::vector<int32_t> tokens) {
    if (static_cast<int64_t>(tokens.size()) <= longest_) known_.push_back(std::move(tokens));
  }

 private:
  std::vector<int32_t> noise(int64_t n) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = static_cast<int32_t>(gen_.in(0, vocab_ - 1));
    return tokens;
  }
  Gen& gen_;
  int64_t longest_;
  int32_t vocab_;
  std::vector<std::vector<int32_t>> known_;
};

SamplingParams make_sampling(Gen& gen, int32_t vocab) {
  SamplingParams params;
  params.temperature = gen.chance(0.5) ? 0.f : 0.7f;
  if (gen.chance(0.85)) params.seed = gen.bits();
  if (gen.chance(0.2)) params.top_k = static_cast<int32_t>(gen.in(1, 5));
  if (gen.chance(0.2)) params.top_p = 0.9f;
  if (gen.chance(0.2)) params.min_p = 0.1f;
  if (gen.chance(0.2)) params.repetition_penalty = 1.25f;
  if (gen.chance(0.2)) params.frequency_penalty = 0.5f;
  if (gen.chance(0.2)) params.presence_penalty = -0.5f;
  if (gen.chance(0.2)) {
    const auto first = static_cast<int32_t>(gen.in(0, vocab - 3));
    params.logit_bias = {{.token = first + 2, .bias = 3}, {.token = first, .bias = -3}};
  }
  // Enough of them that some are left where stop tokens may not come yet.
  if (gen.chance(0.1)) {
    for (int32_t token = 0; token < vocab; ++token)
      if (token < 12 || gen.chance(0.5)) params.allowed_tokens.push_back(token);
  }
  return params;
}

Request make_request(Gen& gen, PromptMaker& prompts, const SimScript& script) {
  Request request;
  request.prompt = prompts.next(gen.chance(0.1) ? script.max_model_len : std::max<int64_t>(1, script.max_model_len * 2 / 3));
  const int64_t left = script.max_model_len - static_cast<int64_t>(request.prompt.size());
  request.max_tokens = gen.chance(0.1) ? left : gen.in(0, std::min<int64_t>(left, 12));
  request.sampling = make_sampling(gen, script.vocab);
  if (gen.chance(0.2))
    request.choices = static_cast<int>(gen.in(1, std::min({int64_t{4}, script.limits.sequences, script.limits.tokens})));
  if (gen.chance(0.3)) request.min_tokens = gen.in(0, request.max_tokens);
  for (auto stops = gen.chance(0.3) ? gen.in(1, 3) : 0; stops > 0; --stops)
    request.stop_tokens.push_back(static_cast<int32_t>(gen.in(0, script.vocab - 1)));
  request.ignore_eos = gen.chance(0.2);
  if (request.choices == 1 && gen.chance(0.05)) {
    for (int64_t i = 0; i < request.max_tokens; ++i)
      request.forced_ids.push_back(static_cast<int32_t>(gen.in(0, script.vocab - 1)));
  }
  if (gen.chance(0.2)) request.log_probs = static_cast<int>(gen.in(0, 3));
  if (gen.chance(0.1)) request.prompt_log_probs = static_cast<int>(gen.in(0, 3));
  if (gen.chance(0.3)) request.cache_salt = gen.pick<std::string>({"a", "b"});
  if (gen.chance(0.05)) request.timeout_us = gen.in(1, 200'000);
  return request;
}

}  // namespace

int64_t common_tokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

void expect_answers(SimRequest& sim, int32_t vocab, const std::vector<int32_t>& end_tokens) {
  const Request& request = sim.request;
  WitnessPath path;
  sim.prompt_hidden.clear();
  for (const int32_t token : request.prompt) {
    path.feed(token);
    sim.prompt_hidden.push_back(path.hidden());
  }
  sim.answers.clear();
  if (request.sampling.temperature != 0 && !request.sampling.seed) return;
  for (int choice = 0; choice < request.choices; ++choice) sim.answers.push_back(answer(request, choice, vocab, end_tokens));
}

SimScript make_sim_script(uint64_t seed, int events) {
  Gen gen(seed);
  SimScript script{.seed = seed, .limits = {}, .end_tokens = {}, .requests = {}, .events = {}};
  script.vocab = gen.pick<int32_t>({40, 97, 200});
  script.end_tokens = {static_cast<int32_t>(gen.in(0, script.vocab - 1))};
  script.max_model_len = gen.pick<int64_t>({2, 9, 24, 40, 64, 96});
  script.spare_blocks = gen.pick<int64_t>({0, 0, 1, 2, 5, 12, 40});
  script.limits = {.tokens = gen.pick<int64_t>({1, 2, 3, 5, 8, 16, 32}), .sequences = gen.in(1, 8)};
  script.limits.min_chunk = gen.in(1, 8);
  if (gen.chance(0.3)) script.limits.penalty_tokens = script.vocab;
  if (gen.chance(0.3)) script.limits.biases = 8;
  script.prefix_caching = gen.chance(0.8);
  script.batch_invariant = gen.chance(0.2);
  if (gen.chance(0.3)) script.tpot_target_ms = 1 + 0.1 * static_cast<double>(gen.in(0, 20));

  // About as much work as the steps between arrivals can do.
  const double work = 0.3 * static_cast<double>(script.max_model_len) + 8;
  const double arrivals = std::clamp(static_cast<double>(script.limits.tokens) / work, 0.01, 0.25) * 0.7;
  PromptMaker prompts(gen, script.max_model_len, script.vocab);
  for (int i = 0; i < events; ++i) {
    Event event;
    if (gen.chance(arrivals)) {
      event = {.kind = Event::Kind::submit, .request = script.requests.size()};
      SimRequest sim{.request = make_request(gen, prompts, script), .answers = {}, .prompt_hidden = {}};
      expect_answers(sim, script.vocab, script.end_tokens);
      std::vector<int32_t> tokens = sim.request.prompt;
      for (const auto& token : sim.answers.empty() ? std::vector<SimRequest::Token>() : sim.answers.front())
        if (token.token >= 0) tokens.push_back(token.token);
      if (gen.chance(0.5)) prompts.remember(std::move(tokens));
      script.requests.push_back(std::move(sim));
    } else if (!script.requests.empty() && gen.chance(0.02)) {
      const auto last = static_cast<int64_t>(script.requests.size()) - 1;
      event = {.kind = Event::Kind::cancel, .request = static_cast<size_t>(gen.in(std::max<int64_t>(0, last - 6), last))};
      script.requests[event.request].cancelled = true;
    } else if (gen.chance(0.02)) {
      event = {.kind = Event::Kind::wait, .wait_us = gen.in(0, 50000)};
    } else if (gen.chance(0.003)) {
      event = {.kind = Event::Kind::reset_cache};
    }
    script.events.push_back(event);
  }
  return script;
}

SimLayout make_sim_layout(const SimScript& script, int ranks) {
  Gen gen(script.seed * 31 + static_cast<uint64_t>(ranks));
  SimLayout out;
  const int interleave = gen.pick({1, 1, 2, 3, 4});
  out.layout = {.shard = {.ranks = ranks, .interleave = interleave},
                .block_tokens = interleave * static_cast<int>(gen.in(1, ranks > 2 ? 2 : 5))};
  out.blocks = out.layout.blocks_for(script.max_model_len) + script.spare_blocks;
  out.exchange = gen.pick({DcpExchange::automatic, DcpExchange::queries, DcpExchange::keys});
  out.context_rows = gen.in(1, 9);
  return out;
}

namespace {

/// The model around which plans are made: heads that every W divides, one KV head.
ModelConfig make_model(int32_t vocab) {
  ModelConfig model;
  model.hidden = 24;
  model.layers = 1;
  model.q_heads = 24;
  model.kv_heads = 1;
  model.head_dim = 8;
  model.vocab = vocab;
  return model;
}

/// Stands between the loop and the ranks: counts, and passes plans on as they are or changed.
class Gate : public StepRunner {
 public:
  Gate(Witness& witness, const Sabotage& sabotage, SimRun& run) : witness_(witness), sabotage_(sabotage), run_(run) {}
  const StepResult& run(const StepPlan& plan) override {
    const int64_t before = allocations_of_this_thread();
    run_.rows += plan->rows;
    run_.copies += plan->copies.count;
    run_.waves += plan->waves.count;
    const StepResult& result = sabotage_ ? run_changed(plan) : witness_.run(plan);
    seconds_ = result.seconds;
    allocations_ += allocations_of_this_thread() - before;
    return result;
  }
  double seconds() const { return seconds_; }
  /// Made by the ranks rather than by the loop.
  int64_t allocations() const { return allocations_; }

 private:
  const StepResult& run_changed(const StepPlan& plan) {
    changed_ = StepPlan::from_bytes(plan.bytes());
    sabotage_(changed_);
    changed_.seal();
    return witness_.run(changed_);
  }
  Witness& witness_;
  const Sabotage& sabotage_;
  SimRun& run_;
  StepPlan changed_;
  double seconds_ = 0;
  int64_t allocations_ = 0;
};

/// Carries out a script, then compares.
class Simulation {
 public:
  Simulation(const SimScript& script, const SimLayout& where, const Sabotage& sabotage)
      : script_(script),
        options_(make_options(script, where)),
        model_(make_model(script.vocab)),
        grid_({.tp = where.layout.shard.ranks,
               .dcp = where.layout.shard.ranks,
               .q_heads = model_.q_heads,
               .kv_heads = 1,
               .interleave = where.layout.shard.interleave,
               .block_tokens = where.layout.block_tokens}),
        builder_(model_, grid_,
                 {.layout = where.layout, .exchange = where.exchange, .context_rows = where.context_rows, .last_layer = 1}),
        witness_({.layout = where.layout,
                  .blocks = where.blocks,
                  .sequences = script.limits.sequences,
                  .blocks_per_sequence = where.layout.blocks_for(script.max_model_len),
                  .rows = script.limits.tokens,
                  .context_rows = where.context_rows,
                  .vocab = script.vocab}),
        gate_(witness_, sabotage, run_),
        loop_(options_, builder_, gate_, metrics_) {
    witness_.fail_at(script.fail_at);
    run_.streams.resize(script.requests.size());
  }

  SimRun run() {
    try {
      for (const Event& event : script_.events) {
        carry_out(event);
        if (!well()) return finish();
      }
      int64_t left = 400'000;
      while (step())
        if (!well() || --left == 0) break;
      if (left == 0) wrong("the engine does not come to an end");
    } catch (const SystemError& error) {
      if (script_.fail_at < 0) wrong(std::string("the runner failed: ") + error.what());
      loop_.fail_all(error.what(), now_us_);
      failed_ = true;
    }
    return finish();
  }

 private:
  static EngineLoop::Options make_options(const SimScript& script, const SimLayout& where) {
    EngineLoop::Options options;
    options.layout = where.layout;
    options.blocks = where.blocks;
    options.limits = script.limits;
    options.max_model_len = script.max_model_len;
    options.vocab = script.vocab;
    options.end_tokens = script.end_tokens;
    options.prefix_caching = script.prefix_caching;
    options.batch_invariant = script.batch_invariant;
    options.tpot_target_ms = script.tpot_target_ms;
    options.seed = script.seed;
    options.fingerprint = "witness";
    options.secret[0] = static_cast<uint8_t>(script.seed);
    return options;
  }

  template <typename... Args>
  void wrong(const Args&... args) {
    std::string text;
    ((text += args), ...);
    if (run_.wrong.size() < 8) run_.wrong.push_back(text);
  }
  bool well() {
    for (const std::string& fault : witness_.faults()) wrong("ranks: ", fault);
    return run_.wrong.empty();
  }

  void carry_out(const Event& event) {
    now_us_ += 10;
    switch (event.kind) {
      case Event::Kind::step:
        step();
        return;
      case Event::Kind::submit: {
        const Request& request = script_.requests[event.request].request;
        auto& stream = run_.streams[event.request];
        stream = std::make_shared<RequestStream>(event.request + 1, request);
        loop_.add(EngineLoop::prepare(request, stream, options_), now_us_);
        break;
      }
      case Event::Kind::cancel:
        loop_.cancel(event.request + 1, now_us_);
        if (!run_.streams[event.request]->done()) wrong("request ", std::to_string(event.request), " goes on after a cancel");
        break;
      case Event::Kind::wait:
        now_us_ += event.wait_us;
        break;
      case Event::Kind::reset_cache:
        loop_.reset_prefix_cache();
        break;
    }
    loop_.check_invariants();
  }

  bool step() {
    const int64_t before = allocations_of_this_thread(), of_ranks = gate_.allocations();
    const bool worked = loop_.step(now_us_);
    run_.allocations += allocations_of_this_thread() - before - (gate_.allocations() - of_ranks);
    now_us_ += worked ? static_cast<int64_t>(gate_.seconds() * 1e6) : 0;
    loop_.check_invariants();
    return worked;
  }

  SimRun finish() {
    run_.checksum = witness_.checksum();
    run_.steps = witness_.steps();
    run_.preemptions = metrics_.preemptions.value();
    run_.hit_tokens = metrics_.prefix_hits.value();
    if (!run_.wrong.empty()) return std::move(run_);
    for (size_t i = 0; i < script_.requests.size(); ++i) check_request(i);
    check_end();
    return std::move(run_);
  }

  void check_request(size_t index) {
    const SimRequest& sim = script_.requests[index];
    const std::string name = "request " + std::to_string(index) + ": ";
    if (!run_.streams[index]) {
      if (!failed_) wrong(name, "was never submitted");
      return;
    }
    const RequestStream& stream = *run_.streams[index];
    if (!stream.done()) return wrong(name, "has not ended");
    const bool may_break_off = sim.cancelled || failed_;
    const int64_t lasted_us = stream.times().finished - stream.times().submitted;
    std::vector<size_t> seen(static_cast<size_t>(sim.request.choices));
    std::vector<bool> ended(seen.size());
    size_t number = 0;
    for (const TokenEvent& event : stream.events()) {
      const auto choice = static_cast<size_t>(event.choice);
      const size_t at = number++;
      if (choice >= seen.size() || ended[choice]) return wrong(name, "an event after the end");
      ended[choice] = event.finish != FinishReason::none;
      if (event.finish == FinishReason::abort || event.finish == FinishReason::error) {
        if (!may_break_off || event.token != -1) wrong(name, "is broken off");
        if ((event.finish == FinishReason::error) != (!stream.error().empty())) wrong(name, "an error without a reason");
        continue;
      }
      if (event.finish == FinishReason::timeout) {
        if (sim.request.timeout_us == 0 || lasted_us < sim.request.timeout_us || event.token != -1) wrong(name, "is not late");
        continue;
      }
      if (sim.answers.empty()) continue;
      const auto& answer = sim.answers[choice];
      const std::string where = name + "choice " + std::to_string(choice) + ", token " + std::to_string(seen[choice]) + ": ";
      if (seen[choice] == answer.size()) return wrong(where, "one too many");
      const SimRequest::Token& token = answer[seen[choice]++];
      if (event.token != token.token || event.finish != token.finish)
        return wrong(where, std::to_string(event.token), " instead of ", std::to_string(token.token));
      if (token.token < 0 || sim.request.log_probs < 0) continue;
      if (event.log_prob != witness_log_prob(token.hidden, token.token)) wrong(where, "log probability");
      check_top(where, token.hidden, stream.top_ids(at), stream.top_log_probs(at), sim.request.log_probs);
    }
    if (std::ranges::find(ended, false) != ended.end()) return wrong(name, "a choice has not ended");
    if (number > seen.size() && sim.request.prompt_log_probs >= 0) check_prompt(name, sim, stream);
    check_hit(name, index, stream);
  }

  void check_top(const std::string& name, uint64_t hidden, std::span<const int32_t> ids, std::span<const float> log_probs,
                 int wanted) {
    if (ids.size() != static_cast<size_t>(wanted)) return wrong(name, "how many most probable tokens");
    for (int32_t k = 0; k < wanted; ++k) {
      const int32_t id = witness_top_id(hidden, k, script_.vocab);
      if (ids[static_cast<size_t>(k)] != id || log_probs[static_cast<size_t>(k)] != witness_log_prob(hidden, id))
        wrong(name, "most probable token ", std::to_string(k));
    }
  }

  void check_prompt(const std::string& name, const SimRequest& sim, const RequestStream& stream) {
    for (size_t i = 0; i + 1 < sim.request.prompt.size(); ++i) {
      if (stream.prompt_log_probs()[i] != witness_log_prob(sim.prompt_hidden[i], sim.request.prompt[i + 1]))
        wrong(name, "log probability of prompt token ", std::to_string(i + 1));
      check_top(name, sim.prompt_hidden[i], stream.prompt_top_ids(i), stream.prompt_top_log_probs(i),
                sim.request.prompt_log_probs);
    }
  }

  /// A hit is at most what another request has stored, and leaves a token to compute.
  void check_hit(const std::string& name, size_t index, const RequestStream& stream) {
    const Request& request = script_.requests[index].request;
    const int64_t hit = stream.cached_tokens();
    int64_t most = 0;
    for (size_t i = 0; i < script_.requests.size() && most < hit; ++i) {
      const Request& other = script_.requests[i].request;
      if (i == index || other.cache_salt != request.cache_salt || !run_.streams[i]) continue;
      std::vector<std::vector<int32_t>> texts(static_cast<size_t>(other.choices), other.prompt);
      for (const TokenEvent& event : run_.streams[i]->events())
        if (event.token >= 0) texts[static_cast<size_t>(event.choice)].push_back(event.token);
      for (const auto& text : texts) most = std::max(most, common_tokens(text, request.prompt));
    }
    most = std::min(most, static_cast<int64_t>(request.prompt.size()) - 1);
    if (!script_.prefix_caching || request.prompt_log_probs >= 0) most = 0;
    if (hit < 0 || hit > most) wrong(name, "a hit of ", std::to_string(hit), " tokens, at most ", std::to_string(most));
  }

  void check_end() {
    loop_.check_invariants();
    loop_.reset_prefix_cache();
    loop_.check_invariants();
    if (loop_.running() != 0 || loop_.waiting() != 0) wrong("something still runs or waits");
    for (const Gauge* gauge :
         {&metrics_.running, &metrics_.waiting, &metrics_.blocks_held, &metrics_.blocks_cached, &metrics_.kv_usage})
      if (gauge->value() != 0) wrong("a gauge is not back at 0 but at ", std::to_string(gauge->value()));
    int64_t choices = 0;
    for (size_t i = 0; i < script_.requests.size(); ++i)
      if (run_.streams[i]) choices += script_.requests[i].request.choices;
    const int64_t ended = metrics_.finished_stop.value() + metrics_.finished_length.value() + metrics_.finished_abort.value() +
                          metrics_.finished_timeout.value() + metrics_.finished_error.value();
    if (ended != choices) wrong(std::to_string(ended), " choices ended of ", std::to_string(choices));
  }

  const SimScript& script_;
  const EngineLoop::Options options_;
  const ModelConfig model_;
  const RankGrid grid_;
  EngineMetrics metrics_;
  PlanBuilder builder_;
  Witness witness_;
  SimRun run_;
  Gate gate_;
  EngineLoop loop_;
  int64_t now_us_ = 0;
  bool failed_ = false;
};

}  // namespace

SimRun run_sim(const SimScript& script, const SimLayout& layout, const Sabotage& sabotage) {
  return Simulation(script, layout, sabotage).run();
}

}  // namespace weft::test

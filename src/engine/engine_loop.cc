#include "engine/engine_loop.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "engine/chunk_sizer.h"

namespace weft {
namespace {

/// Limits that one sequence never exceeds.
Scheduler::Limits resolve_limits(const EngineLoop::Options& options) {
  Scheduler::Limits limits = options.limits;
  limits.penalty_tokens = std::max<int64_t>(limits.penalty_tokens, options.vocab);
  limits.sequences = std::min(limits.sequences, limits.tokens);
  return limits;
}

/// How often the shares of the ranks are added up while something runs: it takes a look at every sequence and rank.
constexpr int64_t kRankPeriodUs = 100'000;

double seconds(int64_t from_us, int64_t to_us) { return static_cast<double>(to_us - from_us) * 1e-6; }

/// Copies rows [first, first + n) of a [rows, width] matrix behind what `out` holds.
template <typename T>
void append_rows(std::vector<T>& out, const std::vector<T>& from, int64_t first, int64_t n, int64_t width) {
  out.insert(out.end(), from.begin() + first * width, from.begin() + (first + n) * width);
}

/// Row `row` of the most probable tokens: as many as were wanted of it.
template <typename T>
std::span<const T> top_row(const std::vector<T>& top, int32_t width, size_t row, int wanted) {
  if (wanted <= 0) return {};
  return std::span(top).subspan(row * static_cast<size_t>(width), static_cast<size_t>(wanted));
}

}  // namespace

struct EngineLoop::Parts {
  Parts(const Options& options_in, PlanBuilder& builder_in, StepRunner& runner_in, EngineMetrics& metrics_in);
  ~Parts();

  // --- requests ---
  Submission* find(uint64_t id) const;
  void end_unfinished(Submission& submission, FinishReason reason, int64_t now_us);
  void finish_choice(Sequence& sequence, FinishReason reason, int64_t now_us);
  void finish_request(Submission& submission, int64_t now_us);
  void free_ended();
  void show_gauges();
  void show_ranks();

  // --- one step ---
  void learn_time(int64_t now_us);
  std::span<const Scheduler::Chosen> choose();
  void describe(std::span<const Scheduler::Chosen> chosen, int64_t now_us);
  void see_prompt(Sequence& sequence, int64_t now_us);
  void absorb(Sequence& sequence, int64_t tokens, size_t index, const StepPlan& plan, const StepResult& result, int64_t now_us);
  void keep_prompt_rows(Sequence& sequence, int64_t tokens, size_t index, const StepPlan& plan, const StepResult& result);
  void end_of_pending(Sequence& sequence, size_t row, const StepResult& result, int32_t top_width, int64_t now_us);
  void take_token(Sequence& sequence, size_t row, const StepResult& result, int32_t top_width, int64_t now_us);
  void count_step(const StepPlan& plan, double step_seconds);

  Options options;
  Scheduler::Limits limits;
  PlanBuilder& builder;
  StepRunner& runner;
  EngineMetrics& metrics;
  SequenceMemory memory;
  Scheduler scheduler;
  ChunkSizer sizer;
  std::string error;  ///< of fail_all()

  Submission *first = nullptr, *last = nullptr;  ///< those that have not ended, in order of arrival; owned
  Submission* ended = nullptr;                   ///< linked by `next`; owned, freed at the end of the call
  int64_t unfinished = 0;                        ///< choices

  /// What the time until the next step says something about: the step before it.
  struct LastStep {
    int64_t start_us = 0, prefill_rows = 0;
    bool decodes = false;
  };
  std::optional<LastStep> last_step;

  // The step under way.
  std::vector<SequenceStep> steps;
  std::vector<RowSampling> sampling;
  PlanBuilder::Flags flags;

  std::vector<int64_t> rank_tokens;  ///< scratch of show_ranks()
  int64_t ranks_due_us = 0;          ///< when the shares of the ranks are to be added up again
};

EngineLoop::Parts::Parts(const Options& options_in, PlanBuilder& builder_in, StepRunner& runner_in, EngineMetrics& metrics_in)
    : options(options_in),
      limits(resolve_limits(options)),
      builder(builder_in),
      runner(runner_in),
      metrics(metrics_in),
      memory({.layout = options.layout,
              .blocks = options.blocks,
              .sequences = limits.sequences,
              .max_length = options.max_model_len,
              .prefix_caching = options.prefix_caching,
              .secret = options.secret}),
      scheduler(memory, limits),
      sizer(options.tpot_target_ms * 1000, limits.min_chunk, limits.tokens) {
  rank_tokens.resize(static_cast<size_t>(options.layout.shard.ranks));
  metrics.rank_kv_tokens = std::vector<Gauge>(rank_tokens.size());
  steps.reserve(static_cast<size_t>(limits.sequences));
  sampling.reserve(static_cast<size_t>(2 * limits.sequences));
  builder.reserve({.rows = limits.tokens,
                   .sequences = limits.sequences,
                   .max_length = options.max_model_len,
                   .sampling_rows = limits.sampling_rows(),
                   .table_updates = memory.max_updates(),
                   .penalty_tokens = limits.penalty_tokens,
                   .biases = limits.biases,
                   .vocab = options.vocab});
}

EngineLoop::Parts::~Parts() {
  while (first != nullptr) {
    Submission* submission = first;
    first = submission->next;
    delete submission;
  }
}

// --- requests --------------------------------------------------------------------------------------------------------------

Submission* EngineLoop::Parts::find(uint64_t id) const {
  Submission* submission = first;
  while (submission != nullptr && submission->stream->id() != id) submission = submission->next;
  return submission;
}

void EngineLoop::Parts::end_unfinished(Submission& submission, FinishReason reason, int64_t now_us) {
  for (Sequence& sequence : submission.sequences) {
    if (sequence.state == SequenceState::finished) continue;
    submission.stream->append({.choice = sequence.choice, .token = -1, .log_prob = 0, .finish = reason}, {}, {});
    finish_choice(sequence, reason, now_us);
  }
}

void EngineLoop::Parts::finish_choice(Sequence& sequence, FinishReason reason, int64_t now_us) {
  // What a step that failed has stored is not known.
  scheduler.remove(sequence, reason != FinishReason::error);
  if (sequence.generated > 1) {
    const double decoding = seconds(sequence.submission->stream->times().first_token, sequence.last_token_us);
    metrics.request_time_per_output_token.observe(decoding / static_cast<double>(sequence.generated - 1));
  }
  (reason == FinishReason::stop     ? metrics.finished_stop
   : reason == FinishReason::length ? metrics.finished_length
   : reason == FinishReason::abort  ? metrics.finished_abort
                                    : metrics.finished_error)
      .add();
  --unfinished;
  if (--sequence.submission->unfinished == 0) finish_request(*sequence.submission, now_us);
}

void EngineLoop::Parts::finish_request(Submission& submission, int64_t now_us) {
  RequestTimes& times = submission.stream->edit_times();
  times.finished = now_us;
  const Sequence& one = submission.sequences.front();
  int64_t generated = 0, most = 0;
  for (const Sequence& sequence : submission.sequences) {
    generated += sequence.generated;
    most = std::max(most, sequence.generated);
  }
  metrics.e2e_latency.observe(seconds(times.submitted, now_us));
  metrics.request_prompt_tokens.observe(static_cast<double>(one.prompt_tokens));
  metrics.request_generated_tokens.observe(static_cast<double>(generated));
  metrics.request_most_generated_tokens.observe(static_cast<double>(most));
  metrics.request_max_tokens.observe(static_cast<double>(submission.request.max_tokens));
  metrics.request_choices.observe(submission.request.choices);
  if (submission.prompt_seen) {
    metrics.queue_time.observe(seconds(times.submitted, times.admitted));
    metrics.inference_time.observe(seconds(times.admitted, now_us));
    metrics.request_computed_tokens.observe(static_cast<double>(one.prompt_tokens - submission.stream->cached_tokens()));
  }
  if (generated > 0) {
    metrics.prefill_time.observe(seconds(times.admitted, times.first_token));
    metrics.decode_time.observe(seconds(times.first_token, now_us));
  }
  submission.stream->finish(error);

  (submission.previous ? submission.previous->next : first) = submission.next;
  (submission.next ? submission.next->previous : last) = submission.previous;
  submission.next = ended;
  ended = &submission;
}

void EngineLoop::Parts::free_ended() {
  while (ended != nullptr) {
    Submission* submission = ended;
    ended = submission->next;
    delete submission;
  }
}

void EngineLoop::Parts::show_gauges() {
  const auto running = static_cast<int64_t>(scheduler.running().size());
  metrics.running.set(static_cast<double>(running));
  metrics.waiting.set(static_cast<double>(unfinished - running));
  metrics.blocks_held.set(static_cast<double>(memory.held()));
  metrics.blocks_cached.set(static_cast<double>(memory.cached()));
  metrics.kv_usage.set(static_cast<double>(memory.held()) / static_cast<double>(std::max<int64_t>(memory.blocks(), 1)));
  if (running == 0) show_ranks();
}

void EngineLoop::Parts::show_ranks() {
  memory.count_rank_tokens(scheduler.running(), rank_tokens);
  for (size_t rank = 0; rank < rank_tokens.size(); ++rank)
    metrics.rank_kv_tokens[rank].set(static_cast<double>(rank_tokens[rank]));
}

// --- one step --------------------------------------------------------------------------------------------------------------

void EngineLoop::Parts::learn_time(int64_t now_us) {
  if (last_step) sizer.observe(now_us - last_step->start_us, last_step->prefill_rows, last_step->decodes);
  last_step.reset();
}

/// Who takes part in the step. Counts what that made necessary.
std::span<const Scheduler::Chosen> EngineLoop::Parts::choose() {
  const int64_t preemptions = scheduler.preemptions(), for_itself = scheduler.preemptions_for_itself();
  const int64_t postponed = scheduler.decodes_postponed(), deferred = memory.admissions_deferred();
  const int64_t dropped = memory.partial_hits_dropped();
  const std::span<const Scheduler::Chosen> chosen = scheduler.next(sizer.rows_beside_decodes());
  const int64_t all = scheduler.preemptions() - preemptions, own = scheduler.preemptions_for_itself() - for_itself;
  metrics.preemptions.add(all);
  metrics.preemptions_for_itself.add(own);
  metrics.preemptions_for_older.add(all - own);
  metrics.decodes_postponed.add(scheduler.decodes_postponed() - postponed);
  metrics.admissions_deferred.add(memory.admissions_deferred() - deferred);
  metrics.partial_hits_dropped.add(memory.partial_hits_dropped() - dropped);
  return chosen;
}

/// Fills `steps`, `sampling` and `flags`.
void EngineLoop::Parts::describe(std::span<const Scheduler::Chosen> chosen, int64_t now_us) {
  steps.clear();
  sampling.clear();
  flags = {};
  last_step = LastStep{.start_us = now_us};
  for (const auto& [sequence, tokens] : chosen) {
    Submission& submission = *sequence->submission;
    const Request& request = submission.request;
    const CaptureFlags& capture = request.capture;
    see_prompt(*sequence, now_us);
    // Whether the prompt is computed for its own sake: a preempted sequence has delivered what was wanted of its rows.
    const bool prompt = sequence->generated == 0, decoding = sequence->decoding(), ends = tokens == sequence->pending();
    const bool every_row = prompt && (capture.all_logits || request.prompt_log_probs >= 0);
    const bool samples = ends && (request.max_tokens > 0 || capture.want_logits);
    const auto begin = static_cast<size_t>(sequence->cached), count = static_cast<size_t>(tokens);
    const std::span<const int32_t> all = sequence->tokens;
    using Logits = SequenceStep::Logits;
    SequenceStep step{.sequence = sequence->slot,
                      .cached = sequence->cached,
                      .tokens = all.subspan(begin, count),
                      .table = sequence->blocks.blocks(),
                      .decode = decoding || options.batch_invariant,
                      .logits = every_row ? Logits::all
                                : samples ? Logits::last
                                          : Logits::none};
    if (prompt && request.prompt_log_probs >= 0) {
      step.targets = all.subspan(begin + 1, std::min(count, all.size() - begin - 1));
      step.top_log_probs = request.prompt_log_probs;
    }
    if (samples) {
      const size_t at = sampling.size();
      const int32_t choices = prompt && request.max_tokens > 0 ? request.choices : 1;
      for (int32_t k = 0; k < choices; ++k) sampling.push_back(row_sampling(*sequence, sequence->choice + k));
      step.sampling = std::span(sampling).subspan(at);
    }
    steps.push_back(step);
    flags.want_log_probs |= (samples && request.log_probs >= 0) || (prompt && request.prompt_log_probs >= 0);
    flags.want_logits |= (every_row && capture.all_logits) || (samples && capture.want_logits);
    flags.record.hidden |= prompt && capture.record.hidden;
    flags.record.router |= prompt && capture.record.router;
    last_step->decodes |= decoding;
    if (!decoding) last_step->prefill_rows += tokens;
  }
}

/// Counts the prompt of a request that takes part in a step for the first time.
void EngineLoop::Parts::see_prompt(Sequence& sequence, int64_t now_us) {
  Submission& submission = *sequence.submission;
  if (submission.prompt_seen) return;
  submission.prompt_seen = true;
  submission.stream->edit_times().admitted = now_us;
  submission.stream->set_cached_tokens(sequence.cached);
  metrics.prompt_tokens.add(sequence.prompt_tokens);
  metrics.computed_prompt_tokens.add(sequence.prompt_tokens - sequence.cached);
  if (!options.prefix_caching) return;
  if (submission.wants_prompt_rows()) return metrics.prompts_not_looked_up.add();
  const int64_t shared = sequence.published * options.layout.virtual_tokens();
  metrics.prefix_queries.add(sequence.prompt_tokens);
  metrics.prefix_hits.add(sequence.cached);
  metrics.prefix_hits_shared.add(shared);
  metrics.prefix_hits_copied.add(sequence.cached - shared);
}

/// Takes what the step has computed of one sequence.
void EngineLoop::Parts::absorb(Sequence& sequence, int64_t tokens, size_t index, const StepPlan& plan, const StepResult& result,
                               int64_t now_us) {
  if (sequence.generated == 0) keep_prompt_rows(sequence, tokens, index, plan, result);
  const bool ends = tokens == sequence.pending(), prompt_ends = ends && sequence.generated == 0;
  sequence.cached += tokens;
  // The end of a prompt is what others are most likely to share.
  memory.publish(sequence, prompt_ends);
  scheduler.done(sequence);
  if (!ends) return;
  const bool every_row = steps[index].logits == SequenceStep::Logits::all;
  const auto row = static_cast<size_t>(builder.first_logit_rows()[index] + (every_row ? tokens - 1 : 0));
  end_of_pending(sequence, row, result, plan->max_top_log_probs, now_us);
}

void EngineLoop::Parts::keep_prompt_rows(Sequence& sequence, int64_t tokens, size_t index, const StepPlan& plan,
                                         const StepResult& result) {
  const Request& request = sequence.submission->request;
  RequestStream& stream = *sequence.submission->stream;
  const int64_t row = builder.first_rows()[index], logit = builder.first_logit_rows()[index];
  const int prompt_top = request.prompt_log_probs;
  for (int64_t i = 0; prompt_top >= 0 && i < tokens && sequence.cached + i + 1 < sequence.prompt_tokens; ++i) {
    const auto at = static_cast<size_t>(logit + i);
    stream.set_prompt_log_prob(sequence.cached + i, result.target_log_probs[at],
                               top_row(result.top_ids, plan->max_top_log_probs, at, prompt_top),
                               top_row(result.top_log_probs, plan->max_top_log_probs, at, prompt_top));
  }
  if (!request.capture.any()) return;
  Captured& captured = stream.edit_captured();
  if (sequence.cached == 0) {  // It may have been preempted half way.
    captured.hidden.clear();
    captured.router.clear();
    captured.logits.clear();
  }
  if (request.capture.record.hidden) {
    captured.hidden.resize(result.hidden.size());
    for (size_t i = 0; i < result.hidden.size(); ++i)
      append_rows(captured.hidden[i], result.hidden[i], row, tokens,
                  static_cast<int64_t>(result.hidden[i].size()) / plan->rows);
  }
  if (request.capture.record.router) {
    captured.router.resize(result.router.size());
    for (size_t i = 0; i < result.router.size(); ++i) {
      captured.router[i].layer = result.router[i].layer;
      captured.router[i].top_k = result.router[i].top_k;
      append_rows(captured.router[i].experts, result.router[i].experts, row, tokens, result.router[i].top_k);
      append_rows(captured.router[i].weights, result.router[i].weights, row, tokens, result.router[i].top_k);
    }
  }
  if (request.capture.all_logits) append_rows(captured.logits, result.logits, logit, tokens, options.vocab);
}

/// All tokens of a sequence are computed, and the next is sampled in sampling row `row`; at the end of a prompt those of the
/// other choices in the rows after it.
void EngineLoop::Parts::end_of_pending(Sequence& sequence, size_t row, const StepResult& result, int32_t top_width,
                                       int64_t now_us) {
  Submission& submission = *sequence.submission;
  const bool prompt_ends = sequence.generated == 0;
  if (submission.request.capture.want_logits) {
    Captured& captured = submission.stream->edit_captured();
    const auto at = static_cast<int64_t>(row);
    if (prompt_ends) append_rows(captured.last_logits, result.logits, at, 1, options.vocab);
    if (submission.request.max_tokens > 0) append_rows(captured.gen_logits, result.logits, at, 1, options.vocab);
  }
  if (submission.request.max_tokens == 0) return end_unfinished(submission, FinishReason::length, now_us);
  if (!prompt_ends) return take_token(sequence, row, result, top_width, now_us);

  submission.stream->edit_times().first_token = now_us;
  metrics.time_to_first_token.observe(seconds(submission.stream->times().submitted, now_us));
  for (Sequence& choice : submission.sequences) {
    if (choice.choice == 0) continue;
    choice.tokens.assign(sequence.tokens.begin(), sequence.tokens.end());
    choice.penalties.assign(sequence.penalties.begin(), sequence.penalties.end());
  }
  for (size_t k = 0; k < submission.sequences.size(); ++k)
    take_token(submission.sequences[k], row + k, result, top_width, now_us);
  for (size_t k = submission.sequences.size(); k-- > 0;)
    if (submission.sequences[k].state == SequenceState::dormant) scheduler.add_first(submission.sequences[k]);
}

void EngineLoop::Parts::take_token(Sequence& sequence, size_t row, const StepResult& result, int32_t top_width,
                                   int64_t now_us) {
  Submission& submission = *sequence.submission;
  const Request& request = submission.request;
  const bool forced = !request.forced_ids.empty();
  const int32_t sampled = result.ids[row];
  const int32_t token = forced ? request.forced_ids[static_cast<size_t>(sequence.generated)] : sampled;
  if (sequence.choice == 0) submission.stream->edit_captured().argmax_ids.push_back(sampled);
  append_token(sequence, token);
  metrics.generated_tokens.add();
  if (sequence.generated > 1) metrics.time_per_output_token.observe(seconds(sequence.last_token_us, now_us));
  sequence.last_token_us = now_us;

  const bool stops = !forced && std::binary_search(submission.ending.begin(), submission.ending.end(), token);
  const FinishReason finish = stops                                      ? FinishReason::stop
                              : sequence.generated == request.max_tokens ? FinishReason::length
                                                                         : FinishReason::none;
  const float log_prob = request.log_probs < 0 ? 0 : forced ? result.target_log_probs[row] : result.log_probs[row];
  submission.stream->append({.choice = sequence.choice, .token = token, .log_prob = log_prob, .finish = finish},
                            top_row(result.top_ids, top_width, row, request.log_probs),
                            top_row(result.top_log_probs, top_width, row, request.log_probs));
  if (finish != FinishReason::none) finish_choice(sequence, finish, now_us);
}

void EngineLoop::Parts::count_step(const StepPlan& plan, double step_seconds) {
  metrics.steps.add();
  metrics.step_rows.add(plan->rows);
  metrics.iteration_tokens.observe(plan->rows);
  metrics.step_duration.observe(step_seconds);
  for (const RowGroup& group : plan[plan->groups])
    (group.via == ContextVia::none      ? metrics.rows_without_context
     : group.via == ContextVia::queries ? metrics.rows_via_queries
                                        : metrics.rows_via_keys)
        .add(group.end - group.begin);
  for (const BlockCopy& copy : plan[plan->copies]) {
    metrics.kv_copies.add();
    metrics.kv_copied_tokens.add(copy.tokens);
  }
}

// --- the loop --------------------------------------------------------------------------------------------------------------

EngineLoop::EngineLoop(const Options& options, PlanBuilder& builder, StepRunner& runner, EngineMetrics& metrics)
    : parts_(std::make_unique<Parts>(options, builder, runner, metrics)) {}
EngineLoop::~EngineLoop() = default;

void EngineLoop::add(SubmissionPtr owned, int64_t now_us) {
  Parts& p = *parts_;
  Submission& submission = *owned.release();
  const SamplingNeed need{.penalty_tokens = static_cast<int64_t>(submission.sequences.front().penalties.capacity()),
                          .biases = static_cast<int64_t>(std::max(submission.biases.size(), submission.early_biases.size()))};
  WEFT_CHECK_LE(submission.request.choices, p.limits.sequences);
  WEFT_CHECK_LE(need.penalty_tokens, p.limits.penalty_tokens);
  WEFT_CHECK_LE(need.biases, p.limits.biases);
  submission.root = p.memory.root(p.options.fingerprint, submission.request.cache_salt);
  submission.previous = p.last;
  (p.last ? p.last->next : p.first) = &submission;
  p.last = &submission;
  p.unfinished += submission.unfinished;
  RequestTimes& times = submission.stream->edit_times();
  if (times.submitted == 0) times.submitted = now_us;
  p.scheduler.add(submission.sequences.front());
  p.show_gauges();
}

void EngineLoop::cancel(uint64_t id, int64_t now_us) {
  Submission* submission = parts_->find(id);
  if (submission == nullptr) return;
  parts_->end_unfinished(*submission, FinishReason::abort, now_us);
  parts_->free_ended();
  parts_->show_gauges();
}

bool EngineLoop::step(int64_t now_us) {
  Parts& p = *parts_;
  p.learn_time(now_us);
  const std::span<const Scheduler::Chosen> chosen = p.choose();
  if (chosen.empty()) return false;
  p.describe(chosen, now_us);
  const StepPlan& plan = p.builder.build(p.steps, p.memory.updates(), p.memory.copies(), p.flags);
  const StepResult& result = p.runner.run(plan);
  p.memory.step_done();
  const int64_t end_us = now_us + std::llround(result.seconds * 1e6), exchange_us = std::llround(result.exchange_seconds * 1e6);
  for (size_t i = 0; i < chosen.size(); ++i) {
    Sequence& sequence = *chosen[i].sequence;
    Submission& submission = *sequence.submission;  // Choices of one request are in the same step, which it is told once.
    if (std::exchange(submission.timed_step, sequence.last_step) != sequence.last_step)
      submission.stream->edit_times().exchange += exchange_us;
    p.absorb(sequence, chosen[i].tokens, i, plan, result, end_us);
  }
  p.count_step(plan, result.seconds);
  // Where nothing is left, the time until the next step is not this step's.
  if (p.unfinished == 0) p.last_step.reset();
  p.free_ended();
  p.show_gauges();
  if (end_us >= p.ranks_due_us) {
    p.ranks_due_us = end_us + kRankPeriodUs;
    p.show_ranks();
  }
  return true;
}

void EngineLoop::fail_all(const std::string& why, int64_t now_us) {
  Parts& p = *parts_;
  p.error = why;
  p.memory.step_done();
  while (p.first != nullptr) p.end_unfinished(*p.first, FinishReason::error, now_us);
  p.last_step.reset();
  p.free_ended();
  p.show_gauges();
}

void EngineLoop::each_running(const std::function<void(uint64_t id, int64_t kv_tokens)>& visit) const {
  for (const Sequence* sequence : parts_->scheduler.running()) visit(sequence->submission->stream->id(), sequence->cached);
}

int64_t EngineLoop::running() const { return static_cast<int64_t>(parts_->scheduler.running().size()); }
int64_t EngineLoop::waiting() const { return parts_->unfinished - running(); }

void EngineLoop::reset_prefix_cache() {
  parts_->memory.reset_cache(parts_->scheduler.running());
  parts_->show_gauges();
}

void EngineLoop::check_invariants() const {
  const std::span<Sequence* const> running = parts_->scheduler.running();
  parts_->memory.check_invariants(running);
  for (size_t i = 0; i < running.size(); ++i) {
    for (size_t k = 0; k < i; ++k) WEFT_CHECK_NE(running[i]->slot, running[k]->slot);
    WEFT_CHECK(running[i]->state == SequenceState::ready) << "slot " << running[i]->slot;
    WEFT_CHECK_GE(running[i]->pending(), 1) << "slot " << running[i]->slot;
  }
}

}  // namespace weft

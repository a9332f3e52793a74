#include "turns.h"

#include <algorithm>

#include "base/check.h"

namespace weft::bench {

int32_t token(uint32_t sequence, uint32_t position, int64_t vocab) {
  uint32_t x = (sequence + 1) * 0x9e3779b1U + (position + 1) * 0x85ebca77U;
  x = (x ^ (x >> 15)) * 0x2c1b3c6dU;
  x ^= x >> 12;
  return static_cast<int32_t>(2 + x % static_cast<uint32_t>(vocab - 2));
}

namespace {

Prompt make_prompt(const Engine& engine, int sequence, int tokens, int generate) {
  const int64_t vocab = engine.model().vocab;
  Prompt prompt;
  prompt.name = "sequence" + std::to_string(sequence);
  prompt.generate = generate;
  for (int i = 0; i < tokens + generate; ++i) {
    auto& ids = i < tokens ? prompt.input_ids : prompt.forced_ids;
    ids.push_back(token(static_cast<uint32_t>(sequence), static_cast<uint32_t>(i), vocab));
  }
  return prompt;
}

}  // namespace

double time_prefill(Engine& engine, int tokens) {
  const std::vector<Prompt> prompts = {make_prompt(engine, 0, tokens, 1)};
  double seconds = 0;
  const Clock::time_point start = Clock::now();
  EngineEvents events;
  events.token = [&](size_t, int32_t) { seconds = seconds_since(start); };
  engine.run(prompts, events);
  return seconds;
}

DecodeTurns::DecodeTurns(Engine& engine, int sequences, int context, int total_steps)
    : sequences_(sequences), total_steps_(total_steps), emitted_(static_cast<size_t>(sequences)) {
  const int budget = engine.config().max_num_batched_tokens;
  WEFT_CHECK_LT(sequences, budget) << "no room for prompts beside the decoding sequences";
  std::vector<Prompt> prompts;
  for (int i = 0; i < sequences; ++i) {
    // Sequence i decodes already while the prompts behind it are being read: that many steps, rounded up, and one to be safe.
    const int waiting = sequences - 1 - i;
    const int early = waiting == 0 ? 0 : (waiting * context + budget - sequences - 1) / (budget - sequences) + 1;
    WEFT_CHECK_GT(context, total_steps + early) << "the context is too short for so many steps";
    prompts.push_back(make_prompt(engine, i, context - total_steps - early, 1 + early + total_steps));
  }
  runner_ = std::thread([this, &engine, prompts = std::move(prompts)] { run(engine, prompts); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return resting_ || over_; });
  if (over_) {
    runner_.join();
    if (error_) std::rethrow_exception(error_);
    WEFT_CHECK(false) << "the run ended before all sequences decoded";
  }
}

DecodeTurns::~DecodeTurns() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }
  changed_.notify_all();
  if (runner_.joinable()) runner_.join();
}

std::vector<double> DecodeTurns::go(int steps) {
  std::unique_lock lock(mutex_);
  steps_taken_ += steps;
  WEFT_CHECK_LE(steps_taken_, total_steps_);
  seconds_.clear();
  steps_left_ = steps;
  resting_ = false;
  changed_.notify_all();
  changed_.wait(lock, [&] { return resting_ || over_; });
  if (error_) std::rethrow_exception(error_);
  WEFT_CHECK_EQ(seconds_.size(), static_cast<size_t>(steps));
  return seconds_;
}

void DecodeTurns::run(Engine& engine, const std::vector<Prompt>& prompts) {
  std::exception_ptr error;
  try {
    EngineEvents events;
    events.token = [this](size_t prompt, int32_t) { on_token(prompt); };
    engine.run(prompts, events);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  error_ = error;
  over_ = true;
  changed_.notify_all();
}

void DecodeTurns::on_token(size_t prompt) {
  std::unique_lock lock(mutex_);
  if (draining_) return;
  if (started_ < sequences_) {  // prompts are still being read
    if (emitted_[prompt]++ > 0 || ++started_ < sequences_) return;
    WEFT_CHECK_EQ(prompt, static_cast<size_t>(sequences_ - 1)) << "the last prompt should be read last";
    return rest(lock);
  }
  const size_t batch = static_cast<size_t>(sequences_);
  WEFT_CHECK_EQ(prompt, events_ % batch) << "every step should give each sequence a token, in order";
  if (++events_ % batch != 0) return;
  seconds_.push_back(seconds_since(mark_));
  mark_ = Clock::now();
  if (--steps_left_ == 0) rest(lock);
}

void DecodeTurns::rest(std::unique_lock<std::mutex>& lock) {
  resting_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !resting_ || draining_; });
  mark_ = Clock::now();
}

}  // namespace weft::bench

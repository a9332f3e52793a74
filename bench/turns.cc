#include "turns.h"

#include <thread>
#include <utility>

#include "base/check.h"

namespace weft::bench {

int32_t token(uint32_t sequence, uint32_t position, int64_t vocab) {
  uint32_t x = (sequence + 1) * 0x9e3779b1U + (position + 1) * 0x85ebca77U;
  x = (x ^ (x >> 15)) * 0x2c1b3c6dU;
  x ^= x >> 12;
  return static_cast<int32_t>(2 + x % static_cast<uint32_t>(vocab - 2));
}

namespace {

Request make_request(const Engine& engine, int sequence, int tokens, int generate) {
  const int64_t vocab = engine.model().vocab;
  Request request;
  request.label = "sequence" + std::to_string(sequence);
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  request.max_tokens = generate;
  for (int i = 0; i < tokens + generate; ++i) {
    auto& ids = i < tokens ? request.prompt : request.forced_ids;
    ids.push_back(token(static_cast<uint32_t>(sequence), static_cast<uint32_t>(i), vocab));
  }
  return request;
}

}  // namespace

double time_prefill(Engine& engine, int tokens) {
  const RequestTimes times = engine.run({make_request(engine, 0, tokens, 1)}).front()->times();
  return static_cast<double>(times.first_token - times.submitted) * 1e-6;
}

Engine::Hooks StepGate::hooks() {
  return {.progress = [this] {
    std::unique_lock lock(mutex_);
    DecodeTurns* const turns = turns_;
    lock.unlock();
    if (turns != nullptr) turns->on_step();
  }};
}

DecodeTurns::DecodeTurns(StepGate& gate, Engine& engine, int sequences, int context, int total_steps)
    : gate_(gate), engine_(engine), total_steps_(total_steps) {
  const int budget = engine.config().max_num_batched_tokens;
  WEFT_CHECK_LT(sequences, budget) << "no room for prompts beside the decoding sequences";
  {
    const std::lock_guard lock(gate_.mutex_);
    gate_.turns_ = this;
  }
  // An order that has nothing to do wakes the engine, and it comes to rest: so all requests are there before its next step.
  engine.reset_prefix_cache();
  std::unique_lock lock(mutex_);
  wait_for_rest(lock);
  for (int i = 0; i < sequences; ++i) {
    // Sequence i decodes already while the prompts behind it are being read: that many steps, rounded up, and one to be safe.
    const int waiting = sequences - 1 - i;
    const int early = waiting == 0 ? 0 : (waiting * context + budget - sequences - 1) / (budget - sequences) + 1;
    WEFT_CHECK_GT(context, total_steps + early) << "the context is too short for so many steps";
    streams_.push_back(engine.submit(make_request(engine, i, context - total_steps - early, 1 + early + total_steps)).stream);
    WEFT_CHECK(streams_.back() != nullptr) << "the engine refused sequence " << i;
  }
  stage_ = Stage::reading;
  resting_ = false;
  changed_.notify_all();
  wait_for_rest(lock);
}

DecodeTurns::~DecodeTurns() {
  {
    const std::lock_guard lock(mutex_);
    stage_ = Stage::draining;
  }
  changed_.notify_all();
  for (const auto& stream : streams_) {
    while (!stream->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const std::lock_guard lock(gate_.mutex_);
    gate_.turns_ = nullptr;
  }
  // Comes to nothing but a turn of the engine's loop, behind which it no longer knows of this object.
  try {
    engine_.run({make_request(engine_, 0, 1, 1)});
  } catch (const SystemError&) {
    // The engine failed, so its thread has ended.
  }
}

std::vector<double> DecodeTurns::go(int steps) {
  std::unique_lock lock(mutex_);
  steps_taken_ += steps;
  WEFT_CHECK_LE(steps_taken_, total_steps_);
  seconds_.clear();
  stage_ = Stage::decoding;
  steps_left_ = steps;
  resting_ = false;
  changed_.notify_all();
  wait_for_rest(lock);
  WEFT_CHECK_EQ(seconds_.size(), static_cast<size_t>(steps));
  return seconds_;
}

void DecodeTurns::wait_for_rest(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return resting_; });
  if (const std::string why = engine_.failure(); !why.empty()) throw SystemError("{}", why);
}

void DecodeTurns::on_step() {
  std::unique_lock lock(mutex_);
  switch (stage_) {
    case Stage::submitting:
      return rest(lock);
    case Stage::reading:
      for (const auto& stream : streams_) {
        if (stream->events().empty()) return;
      }
      return rest(lock);
    case Stage::decoding:
      seconds_.push_back(seconds_since(mark_));
      mark_ = Clock::now();
      if (--steps_left_ == 0 || streams_.front()->done()) rest(lock);
      return;
    case Stage::draining:
      return;
  }
}

void DecodeTurns::rest(std::unique_lock<std::mutex>& lock) {
  resting_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !resting_ || stage_ == Stage::draining; });
  mark_ = Clock::now();
}

}  // namespace weft::bench

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace weft::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Token `position` of prompt `sequence`: any fixed sequence of ids that the other side of a comparison can compute too, never
/// 0 or 1. bench/peer/models.mjs has the same function.
int32_t token(uint32_t sequence, uint32_t position, int64_t vocab);

/// Seconds from the submission of a prompt of `tokens` tokens to its first generated token.
double time_prefill(Engine& engine, int tokens);

class DecodeTurns;

/// Stands between an engine and whoever wants to stop it between two steps. Made before the engine, gone after it.
class StepGate {
 public:
  Engine::Hooks hooks();

 private:
  friend class DecodeTurns;
  std::mutex mutex_;  // guards the pointer
  DecodeTurns* turns_ = nullptr;
};

/// A batch of sequences that decodes in turns: between turns the engine rests behind a step, so that two engines, or an engine
/// and another program, can be timed alternately in the same minutes. Tokens are forced, not sampled, so both sides of a
/// comparison feed the same ones.
class DecodeTurns {
 public:
  /// Runs the prompts of `sequences` sequences. After `total_steps` steps their contexts hold `context` tokens, or up to two
  /// more where prompts are too long for one step. `engine` has the hooks of `gate`.
  DecodeTurns(StepGate& gate, Engine& engine, int sequences, int context, int total_steps);
  /// Lets what is left of the run go through.
  ~DecodeTurns();
  DecodeTurns(const DecodeTurns&) = delete;
  DecodeTurns& operator=(const DecodeTurns&) = delete;

  /// Decodes `steps` tokens of every sequence and returns the seconds of each step, the engine's own planning included.
  /// Requires: no more than `total_steps` in all. Throws what the engine failed with.
  std::vector<double> go(int steps);

 private:
  friend class StepGate;
  void on_step();
  void rest(std::unique_lock<std::mutex>& lock);
  void wait_for_rest(std::unique_lock<std::mutex>& lock);

  StepGate& gate_;
  Engine& engine_;
  int total_steps_ = 0, steps_taken_ = 0;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<std::shared_ptr<RequestStream>> streams_;
  enum class Stage : uint8_t { submitting, reading, decoding, draining } stage_ = Stage::submitting;
  int steps_left_ = 0;  // of this turn
  bool resting_ = false;
  std::vector<double> seconds_;  // of this turn's steps
  Clock::time_point mark_;
};

}  // namespace weft::bench

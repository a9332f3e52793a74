#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_metrics.h"

namespace weft {

/// What the server tells of a model and its ranks.
struct BackendInfo {
  std::string architecture, dtype, kv_dtype;
  int64_t vocab = 0;
  int64_t max_model_len = 0;    ///< longest request, prompt and answer together
  int64_t capacity_tokens = 0;  ///< of the KV memory
  int64_t blocks = 0;           ///< virtual blocks
  int64_t block_tokens = 0;     ///< tokens of a virtual block: block_size * dcp
  int tp = 1, dcp = 1, interleave = 1, block_size = 16;
  bool prefix_caching = true;

  struct Memory {
    int64_t weights = 0, workspaces = 0, exchange = 0, kv = 0;
  };
  Memory rank_bytes = {};  ///< of the largest rank
  int64_t max_num_seqs = 0;
  int64_t max_queued_requests = 0, max_queued_tokens = 0;  ///< bounds of the queue; tokens 0: none
  int processes = 1;                                       ///< that the ranks are spread over
  std::string instruction_set = {};                        ///< that the operators use
};

/// All that the server knows of what answers requests. EngineBackend is the real one; tests have one without a model.
/// Thread: any thread may call anything.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;
  virtual const EngineMetrics& metrics() const = 0;
  /// How many of a sequence's first `tokens` tokens each rank of a DCP group holds.
  virtual std::vector<int64_t> tokens_per_rank(int64_t tokens) const = 0;

  // As those of Engine.
  virtual Engine::Submitted submit(Request request) = 0;
  virtual void cancel(uint64_t id) = 0;
  virtual bool drain(int64_t timeout_ms) = 0;
  virtual std::string failure() const = 0;
  virtual void write_flight() = 0;
  virtual void reset_prefix_cache() = 0;
};

/// Answers with an engine, which it does not own.
class EngineBackend : public Backend {
 public:
  explicit EngineBackend(Engine& engine);
  const BackendInfo& info() const override { return info_; }
  const EngineMetrics& metrics() const override { return engine_.metrics(); }
  std::vector<int64_t> tokens_per_rank(int64_t tokens) const override;
  Engine::Submitted submit(Request request) override { return engine_.submit(std::move(request)); }
  void cancel(uint64_t id) override { engine_.cancel(id); }
  bool drain(int64_t timeout_ms) override { return engine_.drain(timeout_ms); }
  std::string failure() const override { return engine_.failure(); }
  void write_flight() override { engine_.write_flight(); }
  void reset_prefix_cache() override { engine_.reset_prefix_cache(); }

 private:
  Engine& engine_;
  BackendInfo info_;
};

}  // namespace weft

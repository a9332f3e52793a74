#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/engine_metrics.h"
#include "engine/request.h"
#include "layout/kv_shape.h"
#include "layout/rank_grid.h"

namespace weft {

struct LocalRanks;

/// Sizes of a started engine, the same that `inspect` computes without starting one.
struct EngineSizes {
  int64_t weight_bytes = 0;       ///< per rank, the largest rank
  int64_t workspace_bytes = 0;    ///< per rank
  int64_t exchange_bytes = 0;     ///< per rank
  int64_t kv_bytes = 0;           ///< per rank: blocks * block bytes
  double kv_bytes_per_token = 0;  ///< per rank: of one token of a sequence
  KvCapacity capacity;            ///< of the KV memory
  int64_t max_model_len = 0;      ///< longest request, prompt and answer together; at most capacity.tokens
  int64_t max_num_seqs = 0;       ///< sequences that run at once
  DType dtype = DType::bf16;      ///< resolved
  std::string kv_dtype;           ///< of the KV cache: bfloat16, float32, fp8_e4m3 or fp8_ds_mla
  std::string instruction_set;    ///< of this machine, as far as the operators use it
};

/// Everything that follows from model and flags before anything is allocated. Throws UserError for an impossible combination.
EngineSizes engine_sizes(const ModelConfig& model, const EngineConfig& config);

/// Throws UserError for a request that can never run: no tokens, a token outside the vocabulary, longer than the model's limit
/// or than the KV memory, parameters out of range. Pure: needs no engine, so bad prompts are refused before weights are read.
///
/// What counts for the length are the tokens of the prompt and max_tokens: a request of exactly sizes.max_model_len runs, one
/// token more is refused. The KV of the last token is never stored, so the longest request leaves a row of the pool free.
void check_request(const Request& request, const ModelConfig& model, const EngineSizes& sizes);

/// A model on its ranks, with its KV cache, and a thread that runs requests.
///
/// Thread: any thread may call anything. Streams are read by one thread each.
class Engine {
 public:
  struct Hooks {
    /// Called on the engine thread after each step that appended events, and when a request ends otherwise. Must not block or
    /// allocate: wake somebody.
    std::function<void()> progress = {};
    /// Called on the engine thread after each step: for every running sequence its request id and the KV tokens of each DCP
    /// rank.
    std::function<void(uint64_t id, std::span<const int64_t> rank_tokens)> shares = {};
    /// Microseconds, monotonic; the real clock where empty.
    std::function<int64_t()> clock = {};
  };

  /// How the ranks of this process meet the others; where empty, all ranks are threads of this process.
  using MakeRanks = std::function<LocalRanks(const RankGrid&)>;

  /// Loads the model on all ranks and starts the thread. Throws UserError for bad flags or checkpoints, SystemError where the
  /// machine fails.
  Engine(const EngineConfig& config, Hooks hooks, const MakeRanks& make_ranks = {});
  explicit Engine(const EngineConfig& config);
  /// Cancels what runs and ends the threads.
  ~Engine();

  const ModelConfig& model() const;
  const RankGrid& grid() const;
  const EngineSizes& sizes() const;
  const EngineConfig& config() const;
  const EngineMetrics& metrics() const;

  enum class Refusal : uint8_t { none, queue_full, draining, failed };
  struct Submitted {
    std::shared_ptr<RequestStream> stream;  ///< null if refused
    Refusal refusal = Refusal::none;
  };
  /// Queues a request. Throws UserError as check_request(). Refused with a reason, and nothing kept, where the queue is at its
  /// bound (--max-queued-requests, --max-queued-tokens), the engine drains or has failed. An empty queue takes a prompt of any
  /// length.
  Submitted submit(Request request);
  /// Ends a request within one step. Unknown and ended ids are fine.
  void cancel(uint64_t id);

  /// Takes no more requests. Returns when all have ended, or cancels the rest after `timeout_ms` and returns false.
  bool drain(int64_t timeout_ms);
  /// Empty while the engine works; else why it stopped for ever.
  std::string failure() const;
  void reset_prefix_cache();
  /// Writes the last steps to a file in the folder for temporary files, and its name to the log, as a failure does too.
  void write_flight();

  /// Submits all at once and waits for all; the queue bounds do not count. Throws UserError as check_request() before any of
  /// them is queued, SystemError if the engine fails or drains.
  std::vector<std::shared_ptr<RequestStream>> run(std::vector<Request> requests);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft

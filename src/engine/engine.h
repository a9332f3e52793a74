#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "layout/kv_shape.h"
#include "layout/rank_grid.h"
#include "model/step_plan.h"

namespace weft {

/// One prompt to run, and what to keep of the run.
struct Prompt {
  std::string name;
  std::vector<int32_t> input_ids;   ///< at least one
  int generate = 0;                 ///< tokens to generate, greedily; EOS does not end it
  std::vector<int32_t> forced_ids;  ///< step i feeds forced_ids[i] whatever the logits say
  bool all_logits = false;          ///< logits of every prompt position
  bool want_logits = false;         ///< logits of the last prompt position and of each generated token
  RecordFlags record;               ///< of the prompt's rows
};

/// What came of a prompt. `gen_logits[i]` chose gen_ids[i]; row 0 is `last_logits`.
struct PromptResult {
  std::vector<int32_t> gen_ids;                  ///< [generate] argmax of each step's logits, forced or not
  std::vector<float> last_logits;                ///< [V] if wanted
  std::vector<float> logits;                     ///< [L, V] if all_logits
  std::vector<float> gen_logits;                 ///< [generate, V] if wanted
  std::vector<std::vector<float>> hidden;        ///< [layers + 1][L, H] if recorded
  std::vector<StepResult::RouterRecord> router;  ///< [L, k] per sparse layer, if recorded
};

/// Sizes of a started engine, the same that `inspect` computes without starting one.
struct EngineSizes {
  int64_t weight_bytes = 0;       ///< per rank, the largest rank
  int64_t workspace_bytes = 0;    ///< per rank
  int64_t exchange_bytes = 0;     ///< per rank
  int64_t kv_bytes = 0;           ///< per rank: blocks * block bytes
  double kv_bytes_per_token = 0;  ///< per rank: of one token of a sequence
  KvCapacity capacity;
  int64_t max_model_len = 0;
  DType dtype = DType::bf16, kv_dtype = DType::bf16;  ///< resolved
};

/// Everything that follows from model and flags before anything is allocated. Throws UserError for an impossible combination.
/// `memory_per_rank` > 0 is a budget for weights, workspaces, exchange buffers and KV together; 0: KV as the flags say.
EngineSizes engine_sizes(const ModelConfig& model, const EngineConfig& config, int64_t memory_per_rank = 0);

/// Observer of a run, for progress output. Called on the engine thread.
struct EngineEvents {
  /// A token was generated for prompt number `prompt`.
  std::function<void(size_t prompt, int32_t id)> token;
  /// After each step: for every running prompt its number and the KV tokens that each DCP rank holds for it.
  std::function<void(size_t prompt, const std::vector<int64_t>& rank_tokens)> shares;
};

/// A model on its ranks, with its KV cache. Ranks are threads of this process.
///
/// Thread: one caller at a time.
class Engine {
 public:
  /// Loads the model on all ranks. Throws UserError for bad flags or checkpoints, SystemError where the machine fails.
  explicit Engine(const EngineConfig& config);
  ~Engine();

  const ModelConfig& model() const;
  const RankGrid& grid() const;
  const EngineSizes& sizes() const;
  const EngineConfig& config() const;

  /// Runs all prompts, submitted at once: decodes first, then prefill chunks up to the token budget, each prompt admitted in
  /// order once its whole length has free blocks. Throws UserError, before anything runs, for a prompt that can never fit or
  /// holds a token outside the vocabulary; SystemError with the first error of a rank that failed (the engine is dead
  /// afterwards).
  std::vector<PromptResult> run(const std::vector<Prompt>& prompts, const EngineEvents& events = {});

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft

#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_table.h"

namespace weft {

/// What a sequence waits for.
enum class SequenceState : uint8_t {
  waiting_admission,  ///< for blocks and a table slot
  waiting_remote_kv,  ///< for KV that another node computed
  waiting_tier_load,  ///< for blocks from host memory or disk
  ready,              ///< for the next step
  in_step,            ///< its rows are being computed
  finished,
};

/// One request's tokens, progress and blocks.
///
/// Thread: engine thread only.
struct Sequence {
  Sequence(size_t prompt_in, std::vector<int32_t> tokens_in, int64_t generate_in, BlockPool& pool)
      : prompt(prompt_in),
        prompt_tokens(static_cast<int64_t>(tokens_in.size())),
        generate(generate_in),
        tokens(std::move(tokens_in)),
        blocks(pool) {}

  size_t prompt = 0;  ///< number of the prompt in the run
  int64_t prompt_tokens = 0;
  int64_t generate = 0;         ///< tokens to generate
  std::vector<int32_t> tokens;  ///< prompt, then what was fed after it
  int64_t cached = 0;           ///< tokens whose KV is stored
  int64_t generated = 0;        ///< tokens sampled
  int32_t slot = -1;            ///< in the ranks' tables, while admitted
  SequenceState state = SequenceState::waiting_admission;
  BlockTable blocks;

  bool in_prefill() const { return cached < prompt_tokens; }
  /// Tokens whose KV is stored at the end: the last generated token is never fed.
  int64_t final_length() const { return prompt_tokens + std::max<int64_t>(generate - 1, 0); }
};

}  // namespace weft

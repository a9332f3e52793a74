#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/plan_builder.h"
#include "engine/request.h"
#include "engine/sequence.h"

namespace weft {

/// A checked request with everything that it needs while it runs. Made by the submitting thread, then the engine thread's,
/// which allocates nothing for it.
struct Submission {
  Request request;  ///< its prompt lies in the sequences
  std::shared_ptr<RequestStream> stream;
  std::vector<Sequence> sequences;  ///< one a choice, at fixed addresses

  SamplingRow sampling;                 ///< of every choice, but for its number
  std::vector<LogitBias> biases;        ///< ascending by token
  std::vector<LogitBias> early_biases;  ///< as long as an end token may not come: the same, with those at -infinity
  std::vector<uint32_t> allowed;        ///< [ceil(vocab / 32)] bits, or empty: all tokens
  std::vector<int32_t> ending;          ///< tokens that end an answer, ascending
  bool penalised = false;               ///< Sequence::penalties is kept

  PrefixKey root;                                   ///< of its prefixes
  int unfinished = 0;                               ///< choices
  bool prompt_seen = false;                         ///< its prompt has been looked up and counted
  uint64_t timed_step = 0;                          ///< the last step whose exchange time it has
  Submission *previous = nullptr, *next = nullptr;  ///< among those of the engine

  /// Something of every row of the prompt is wanted, so none may come from the cache.
  bool wants_prompt_rows() const {
    return request.prompt_log_probs >= 0 || request.capture.all_logits || request.capture.record.hidden ||
           request.capture.record.router;
  }
};

/// What the samples at the end of a sequence's pending tokens take of a step's bounded lists.
struct SamplingNeed {
  int64_t extra_rows = 0;  ///< beyond one
  int64_t penalty_tokens = 0, biases = 0;
};
SamplingNeed sampling_need(const Sequence& sequence);

/// How to sample `choice` of the request after the tokens of `sequence`, which is that choice or, at the end of the prompt, the
/// first one. The lists belong to the sequence and the submission.
RowSampling row_sampling(const Sequence& sequence, int32_t choice);

/// Appends a generated token, to the penalties too.
void append_token(Sequence& sequence, int32_t token);

}  // namespace weft

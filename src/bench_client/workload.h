#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::bench {

/// One request of a conversation: what it adds to the prompt, and the length of the answer that it asks for.
struct Turn {
  std::vector<int32_t> ids = {};  ///< the new part as token ids,
  std::string text = {};          ///< or as text where there are no ids
  int64_t input_tokens = 0;       ///< of the new part
  int64_t output_tokens = 0;
  double delay_s = 0;  ///< from the end of the answer before to this request
};

/// Requests that follow one another: the prompt of each is everything said before, answers included, and its own part. Most
/// have one turn.
struct Conversation {
  std::optional<double> start_s = {};  ///< after the beginning of the run, where the data say so
  std::vector<Turn> turns = {};
};

/// All that a benchmark sends. How conversations without a start are spread over time is not decided here: see arrivals.h.
struct Workload {
  std::vector<Conversation> conversations = {};
  int64_t inexact = 0;  ///< prompts that could not be given exactly the number of tokens asked for

  int64_t requests() const {
    int64_t out = 0;
    for (const Conversation& conversation : conversations) out += static_cast<int64_t>(conversation.turns.size());
    return out;
  }
};

}  // namespace weft::bench

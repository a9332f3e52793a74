#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench_client/measures.h"
#include "bench_client/workload.h"

namespace weft::bench {

/// What is the same in all requests of a run.
struct RequestForm {
  bool chat = false;
  std::string model = {};
  bool ignore_eos = false;
  std::optional<int> log_probs = {};
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();  ///< fields that are added, or put in place of ours
};

/// What has been said in a conversation so far: as token ids, text or messages, whichever the turns and the API are made of.
class History {
 public:
  explicit History(const RequestForm& form) : form_(&form) {}

  /// The user's next part.
  void ask(const Turn& turn);
  /// The server's answer to it. Where prompts are ids and the server did not tell those of its answer, as many others stand in
  /// for them: the length is right, a prefix cache finds only what came before.
  void answer(const Record& record, uint64_t stand_in_seed);
  /// The body of the request for an answer of so many tokens. `goes_on`: another turn needs this answer's token ids.
  std::string body(int64_t output_tokens, bool goes_on) const;
  /// Tokens as far as the client knows.
  int64_t tokens() const { return tokens_; }

 private:
  const RequestForm* form_;
  std::vector<int32_t> ids_;
  std::string text_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  int64_t tokens_ = 0;
};

}  // namespace weft::bench

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bench_client/token_source.h"
#include "bench_client/workload.h"
#include "text/tokenizer.h"

namespace weft::bench {

/// Made-up prompts: all begin with the same prefix_len tokens; the rest and the answers have lengths drawn evenly from
/// [floor(len * (1 - range_ratio)), ceil(len * (1 + range_ratio))], answers at least 1.
struct RandomSpec {
  int64_t prompts = 1000;
  int64_t input_len = 1024, output_len = 128, prefix_len = 0;
  double range_ratio = 0;  ///< 0 to less than 1
};
/// Throws UserError where a prompt might have no token.
Workload random_workload(const RandomSpec& spec, const TokenSource& source, uint64_t seed);

/// Made-up prompts, each beginning with one of `prefixes` prefixes, evenly, in random order.
struct PrefixRepetitionSpec {
  int64_t prompts = 1000;
  int64_t prefixes = 10, prefix_len = 256, suffix_len = 256, output_len = 128;
  bool shuffle = true;
};
/// Throws UserError where there are fewer prompts than prefixes, or a prompt would have no token.
Workload prefix_repetition_workload(const PrefixRepetitionSpec& spec, const TokenSource& source, uint64_t seed);

/// Conversations as ShareGPT files have them, [{"conversations": [{"from", "value"}, ...]}, ...]: the first message of each is
/// a prompt, and the second tells how long the answer shall be. Those of fewer than 4 tokens either way, of more than 1024 in
/// the prompt, or 2048 in all, are left out.
struct ShareGptSpec {
  int64_t prompts = 1000;
  std::optional<int64_t> output_len = {};  ///< of all answers, instead of the file's
  bool shuffle = true;
  bool oversample = true;  ///< take prompts again where the file has too few
};
/// Throws UserError for a file of another kind, and for one without a usable conversation; `path` is for messages.
Workload sharegpt_workload(std::string_view json, const ShareGptSpec& spec, const Tokenizer& tokenizer, uint64_t seed,
                           std::string_view path);

/// The text of a file. Throws UserError if it cannot be read.
std::string read_dataset(const std::string& path);

}  // namespace weft::bench

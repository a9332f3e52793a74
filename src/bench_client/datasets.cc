#include "bench_client/datasets.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "bench_client/dice.h"

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr int64_t kLeastTokens = 4, kMostPromptTokens = 1024, kMostTokens = 2048;

struct Range {
  int64_t low, high;
};
Range around(int64_t length, double ratio, int64_t least) {
  const auto real = static_cast<double>(length);
  return {std::max(least, static_cast<int64_t>(std::floor(real * (1 - ratio)))),
          std::max(least, static_cast<int64_t>(std::ceil(real * (1 + ratio))))};
}

Conversation single(Turn turn) {
  Conversation out;
  out.turns.push_back(std::move(turn));
  return out;
}

/// A message of an entry as text, else nullptr.
const std::string* message(const json& entry, size_t index) {
  const json& value = entry["conversations"][index];
  if (!value.is_object() || !value.contains("value") || !value["value"].is_string()) return nullptr;
  return &value["value"].get_ref<const std::string&>();
}

/// The request that an entry stands for, if it has the right size.
std::optional<Turn> sharegpt_turn(const json& entry, const ShareGptSpec& spec, const Tokenizer& tokenizer) {
  if (!entry.is_object() || !entry.contains("conversations")) return std::nullopt;
  if (!entry["conversations"].is_array() || entry["conversations"].size() < 2) return std::nullopt;
  const std::string *prompt = message(entry, 0), *answer = message(entry, 1);
  if (prompt == nullptr || answer == nullptr) return std::nullopt;
  const auto count = [&](const std::string& text) {
    return static_cast<int64_t>(tokenizer.encode(text, {.max_tokens = kMostTokens}).size());
  };
  const int64_t input = count(*prompt), output = spec.output_len ? *spec.output_len : count(*answer);
  const bool too_short = input < kLeastTokens || (!spec.output_len && output < kLeastTokens);
  if (too_short || input > kMostPromptTokens || input + output > kMostTokens) return std::nullopt;
  return Turn{.text = *prompt, .input_tokens = input, .output_tokens = output};
}

}  // namespace

Workload random_workload(const RandomSpec& spec, const TokenSource& source, uint64_t seed) {
  const Range inputs = around(spec.input_len, spec.range_ratio, 0), outputs = around(spec.output_len, spec.range_ratio, 1);
  if (spec.prefix_len + inputs.low < 1)
    throw UserError(
        "a random prompt may have no token: --random-prefix-len {} and --random-input-len {}, down to {} by "
        "--random-range-ratio "
        "{}; together they must be 1 or more",
        spec.prefix_len, spec.input_len, inputs.low, spec.range_ratio);
  const PromptPart prefix = source.draw(spec.prefix_len, Dice(seed, Dice::For::prefix));
  Dice lengths(seed, Dice::For::lengths);
  Workload out;
  for (int64_t i = 0; i < spec.prompts; ++i) {
    const int64_t input = lengths.in(inputs.low, inputs.high), output = lengths.in(outputs.low, outputs.high);
    const PromptPart rest = source.draw(input, Dice(seed, Dice::For::tokens, static_cast<uint64_t>(i)));
    out.conversations.push_back(single(source.join({prefix, rest}, output, out.inexact)));
  }
  return out;
}

Workload prefix_repetition_workload(const PrefixRepetitionSpec& spec, const TokenSource& source, uint64_t seed) {
  if (spec.prompts < spec.prefixes)
    throw UserError("--num-prompts must be at least --prefix-repetition-num-prefixes: got {} and {}", spec.prompts,
                    spec.prefixes);
  if (spec.prefix_len + spec.suffix_len < 1)
    throw UserError(
        "--prefix-repetition-prefix-len and --prefix-repetition-suffix-len must be 1 or more together: got 0 and 0");
  std::vector<PromptPart> prefixes;
  for (int64_t i = 0; i < spec.prefixes; ++i)
    prefixes.push_back(source.draw(spec.prefix_len, Dice(seed, Dice::For::prefix, static_cast<uint64_t>(i))));
  Workload out;
  for (int64_t i = 0; i < spec.prompts; ++i) {
    const PromptPart suffix = source.draw(spec.suffix_len, Dice(seed, Dice::For::tokens, static_cast<uint64_t>(i)));
    const PromptPart& prefix = prefixes[static_cast<size_t>(i % spec.prefixes)];
    out.conversations.push_back(single(source.join({prefix, suffix}, spec.output_len, out.inexact)));
  }
  if (spec.shuffle) Dice(seed, Dice::For::order).shuffle(out.conversations);
  return out;
}

Workload sharegpt_workload(std::string_view text, const ShareGptSpec& spec, const Tokenizer& tokenizer, uint64_t seed,
                           std::string_view path) {
  const json entries = json::parse(text, nullptr, false);
  if (!entries.is_array())
    throw UserError("a ShareGPT file must be a JSON list of {{\"conversations\": [{{\"value\": TEXT}}, ...]}}: {}", path);
  std::vector<size_t> order(entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (spec.shuffle) Dice(seed, Dice::For::order).shuffle(order);
  const auto wanted = static_cast<size_t>(spec.prompts);
  Workload out;
  for (const size_t index : order) {
    if (out.conversations.size() == wanted) break;
    if (auto turn = sharegpt_turn(entries[index], spec, tokenizer)) out.conversations.push_back(single(*std::move(turn)));
  }
  if (out.conversations.empty())
    throw UserError(
        "no usable conversation among {} entries: it needs a prompt of {} to {} tokens and an answer of {} or more, {} at most "
        "together, path {}",
        entries.size(), kLeastTokens, kMostPromptTokens, kLeastTokens, kMostTokens, path);
  const size_t found = out.conversations.size();
  out.conversations.reserve(wanted);
  for (size_t i = 0; spec.oversample && out.conversations.size() < wanted; ++i)
    out.conversations.push_back(out.conversations[i % found]);
  return out;
}

std::string read_dataset(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw UserError("--dataset-path must be a file: got {}", path);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw UserError("--dataset-path cannot be read: {}", path);
  return std::move(text).str();
}

}  // namespace weft::bench

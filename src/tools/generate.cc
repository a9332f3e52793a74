#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "tools/commands.h"

namespace weft {
namespace {

constexpr int kDefaultTokens = 16;

void print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int max_tokens(const Invocation& invocation) {
  if (!invocation.has("max-tokens")) return kDefaultTokens;
  const std::string& text = invocation["max-tokens"];
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    throw UserError("--max-tokens must be a whole number from 1 on: got {}", text);
  return value;
}

}  // namespace

std::vector<int32_t> parse_token_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char *at = text.data(), *const end = text.data() + text.size(); at <= end;) {
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || (next != end && *next != ','))
      throw UserError("--prompt-ids must be token ids with commas between, such as 5,6,7: got {}", text.substr(0, 80));
    ids.push_back(id);
    at = next + 1;
  }
  return ids;
}

void run_generate(const Invocation& invocation) {
  Prompt prompt;
  prompt.name = "prompt";
  prompt.input_ids = parse_token_ids(invocation["prompt-ids"]);
  prompt.generate = max_tokens(invocation);

  Engine engine(invocation.engine);
  const RankGrid& grid = engine.grid();
  std::string header = fmt::format("{}, {} layers, tp {}, dcp {}, {}: room for {} tokens\n{:>8}",
                                   to_string(engine.model().architecture), engine.model().layers, grid.tp(), grid.dcp(),
                                   to_string(engine.sizes().dtype), engine.sizes().capacity.tokens, "token");
  for (int rank = 0; rank < grid.dcp(); ++rank) header += fmt::format("{:>9}", fmt::format("rank {}", rank));
  header += "   (KV tokens that each rank holds)";

  // A step reports its token first and then the shares that it left behind. The header waits for the first step: a refused
  // prompt prints nothing.
  std::string token = "prompt";
  EngineEvents events;
  events.token = [&](size_t, int32_t id) { token = fmt::to_string(id); };
  events.shares = [&](size_t, const std::vector<int64_t>& shares) {
    if (!header.empty()) print(std::exchange(header, ""));
    print(fmt::format("{:>8}{:>9}", token, fmt::join(shares, "")));
    token = "prompt";
  };
  const auto results = engine.run({prompt}, events);
  print(fmt::format("generated {}", fmt::join(results.front().gen_ids, ",")));
}

}  // namespace weft

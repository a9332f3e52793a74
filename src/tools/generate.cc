#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "engine/engine.h"
#include "tools/commands.h"
#include "tools/prompts.h"

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

/// KV tokens of each context rank where `stored` tokens of a sequence are stored.
std::vector<int64_t> shares(const Engine& engine, int64_t stored) {
  std::vector<int64_t> tokens;
  for (int rank = 0; rank < engine.grid().dcp(); ++rank) tokens.push_back(engine.grid().shard().local_count(stored, rank));
  return tokens;
}

std::string table_header(const Engine& engine) {
  const RankGrid& grid = engine.grid();
  std::string header = fmt::format("{}, {} layers, tp {}, dcp {}, {}: room for {} tokens\n{:>8}",
                                   to_string(engine.model().architecture), engine.model().layers, grid.tp(), grid.dcp(),
                                   to_string(engine.sizes().dtype), engine.sizes().capacity.tokens, "token");
  for (int rank = 0; rank < grid.dcp(); ++rank) header += fmt::format("{:>9}", fmt::format("rank {}", rank));
  return header + "   (KV tokens that each rank holds)";
}

std::string table_row(const Engine& engine, int32_t token, int64_t stored) {
  return fmt::format("{:>8}{:>9}", token, fmt::join(shares(engine, stored), ""));
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
  const EngineConfig& config = invocation.engine;
  Request request;
  request.prompt = parse_token_ids(invocation["prompt-ids"]);
  request.max_tokens = max_tokens(invocation);
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  require_possible(config, {request});

  std::atomic<uint32_t> progress{0};
  Engine engine(config,
                {.progress =
                     [&] {
                       progress.fetch_add(1);
                       progress.notify_all();
                     }},
                invocation.make_ranks);
  const std::shared_ptr<RequestStream> stream = engine.submit(request).stream;
  if (stream == nullptr) throw SystemError("{}", engine.failure());

  const bool json = invocation.has("json");
  std::vector<int32_t> ids;
  for (bool done = false; !done;) {
    const uint32_t seen = progress.load();
    done = stream->done();  // asked first: what is done has all its events
    for (const TokenEvent& event : stream->events(ids.size())) {
      if (event.token < 0) break;
      if (!json && ids.empty()) print(table_header(engine));
      // The KV of the prompt and of the tokens before this one is stored: a token's own comes with the next step.
      if (!json) print(table_row(engine, event.token, stream->prompt_tokens() + static_cast<int64_t>(ids.size())));
      ids.push_back(event.token);
    }
    if (!done) progress.wait(seen);
  }
  if (!stream->error().empty()) throw SystemError("{}", stream->error());
  if (json) {
    nlohmann::ordered_json out;
    out["prompt_tokens"] = stream->prompt_tokens();
    out["token_ids"] = ids;
    out["kv_tokens_per_rank"] = shares(engine, stream->prompt_tokens() + static_cast<int64_t>(ids.size()) - 1);
    print(out.dump());
  } else {
    print(fmt::format("generated {}", fmt::join(ids, ",")));
  }
}

}  // namespace weft

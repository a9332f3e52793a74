// Times model steps of Weft on request, for comparisons with other programs. Reads one request a line from standard input and
// answers each with one line:
//
//   prefill TOKENS                       ok SECONDS                  one prompt, to its first generated token
//   decode SEQUENCES CONTEXT STEPS       ok                          prompts read; STEPS steps may follow, ending at CONTEXT
//   go STEPS                             ok SECONDS SECONDS ...      of each step
//   end                                  ok                          of this decode
//
// Between requests the program waits in a read, so two programs can take turns. A failure ends it with a message on stderr.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine.h"
#include "turns.h"

namespace {

using weft::Engine;
using weft::EngineConfig;
using weft::bench::DecodeTurns;

void answer(const std::vector<double>& seconds = {}) {
  std::printf("ok");
  for (const double s : seconds) std::printf(" %.9f", s);
  std::printf("\n");
  std::fflush(stdout);
}

void serve(Engine& engine) {
  std::unique_ptr<DecodeTurns> turns;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string request;
    int a = 0, b = 0, c = 0;
    words >> request >> a >> b >> c;
    if (request == "prefill" && !turns) {
      answer({weft::bench::time_prefill(engine, a)});
    } else if (request == "decode" && !turns) {
      turns = std::make_unique<DecodeTurns>(engine, a, b, c);
      answer();
    } else if (request == "go" && turns) {
      answer(turns->go(a));
    } else if (request == "end") {
      turns.reset();
      answer();
    } else {
      throw weft::UserError("not a request here: " + line);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  weft::log::start();
  CLI::App app("Times model steps on request; see the head of bench/step_bench.cc for the requests.");
  EngineConfig config;
  int64_t kv_tokens = 8192;
  app.add_option("model", config.model_dir, "Folder with config.json and weights")->required();
  app.add_option("--threads", config.threads, "Threads of all ranks together");
  app.add_option("--max-num-batched-tokens", config.max_num_batched_tokens, "Tokens of a step, hence the chunk of a prefill");
  app.add_option("--kv-tokens", kv_tokens, "Tokens that the KV cache holds");
  CLI11_PARSE(app, argc, argv);
  config.num_gpu_blocks_override = (kv_tokens + config.block_size - 1) / config.block_size;
  config.max_num_seqs = 32;
  try {
    Engine engine(config);
    serve(engine);
  } catch (const std::exception& error) {
    weft::log::error("{}", error.what());
    return 1;
  }
  return 0;
}

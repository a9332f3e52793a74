// What weaving the KV cache costs a decode step: the same two ranks with W = 1 and W = 2, random weights, in turns.
//
//   weft_dcp_step [MODEL_DIR]      default: bench/models/mla-dense, whose config.json is all that is read
//
// Prints each round's median step of both and the ratio W = 2 / W = 1, then the median of the ratios.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "base/log.h"
#include "engine/engine.h"
#include "turns.h"

namespace {

using weft::Engine;
using weft::EngineConfig;
using weft::bench::DecodeTurns;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

int main(int argc, char** argv) {
  weft::log::start();
  CLI::App app("Decode step with the KV cache woven over two ranks against a step without, in turns.");
  EngineConfig config{
      .model_dir = WEFT_SOURCE_DIR "/bench/models/mla-dense", .load_format = weft::LoadFormat::dummy, .threads = 2};
  int sequences = 8, context = 4096, rounds = 9, steps = 8;
  app.add_option("model", config.model_dir, "Folder with config.json");
  app.add_option("--threads", config.threads, "Threads of both ranks together");
  app.add_option("--sequences", sequences, "Sequences in the batch");
  app.add_option("--context", context, "Tokens of each at the end");
  app.add_option("--rounds", rounds, "Rounds");
  app.add_option("--steps", steps, "Steps in a turn");
  CLI11_PARSE(app, argc, argv);
  config.tensor_parallel_size = 2;
  config.max_num_seqs = std::max(sequences, 2);
  config.num_gpu_blocks_override = static_cast<int64_t>(sequences) * (context / config.block_size + 2);
  try {
    EngineConfig woven = config;
    woven.decode_context_parallel_size = 2;
    weft::bench::StepGate one_gate, two_gate;
    Engine one(config, one_gate.hooks()), two(woven, two_gate.hooks());
    DecodeTurns plain(one_gate, one, sequences, context, rounds * steps),
        dcp(two_gate, two, sequences, context, rounds * steps);
    std::vector<double> ratios;
    std::printf("| round | W = 1 ms | W = 2 ms | ratio |\n|---|---|---|---|\n");
    for (int round = 0; round < rounds; ++round) {
      const double a = median(plain.go(steps)), b = median(dcp.go(steps));
      ratios.push_back(b / a);
      std::printf("| %d | %.2f | %.2f | %.3f |\n", round + 1, 1e3 * a, 1e3 * b, b / a);
      std::fflush(stdout);
    }
    std::printf("\nmedian ratio %.3f, %d sequences of %d tokens, tp 2, %d threads\n", median(ratios), sequences, context,
                config.threads);
  } catch (const std::exception& error) {
    weft::log::error("{}", error.what());
    return 1;
  }
  return 0;
}

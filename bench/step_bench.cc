// Times model steps of Weft on request, for comparisons with other programs.
//
//   weft_step_bench MODEL_DIR [engine flags]
//
// Reads one request a line from standard input and answers each with one line:
//
//   prefill TOKENS                       ok SECONDS                  one prompt, to its first generated token
//   decode SEQUENCES CONTEXT STEPS       ok                          prompts read; STEPS steps may follow, ending at CONTEXT
//   go STEPS                             ok SECONDS SECONDS ...      of each step
//   end                                  ok                          of this decode
//
// Between requests the program waits in a read, so two programs can take turns. A failure ends it with a message on stderr.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine.h"
#include "tools/flags.h"
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

void serve(weft::bench::StepGate& gate, Engine& engine) {
  std::unique_ptr<DecodeTurns> turns;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string request;
    int a = 0, b = 0, c = 0;
    words >> request >> a >> b >> c;
    if (request == "prefill" && !turns) {
      answer({weft::bench::time_prefill(engine, a)});
    } else if (request == "decode" && !turns) {
      turns = std::make_unique<DecodeTurns>(gate, engine, a, b, c);
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

/// MODEL_DIR and engine flags as `weft eval` takes them.
EngineConfig parse(int argc, char** argv) {
  std::vector<std::pair<const weft::Flag*, std::string>> given;
  std::string model;
  for (const std::string& argument : weft::plain_arguments({argv + 1, argv + argc})) {
    if (!argument.starts_with("--")) {
      model = argument;
      continue;
    }
    const size_t equals = std::min(argument.find('='), argument.size());
    const weft::Flag* flag = weft::find_flag(argument.substr(2, equals - 2));
    if (!flag || equals == argument.size()) throw weft::UserError("not an engine flag with a value: " + argument);
    given.emplace_back(flag, argument.substr(equals + 1));
  }
  if (model.empty()) throw weft::UserError("usage: weft_step_bench MODEL_DIR [engine flags]");
  EngineConfig config = weft::engine_config(given, [](const char* name) { return std::getenv(name); });
  config.model_dir = model;
  config.enable_prefix_caching = false;  // the same prompts are timed again and again
  return config;
}

}  // namespace

int main(int argc, char** argv) {
  weft::log::start();
  try {
    weft::bench::StepGate gate;
    Engine engine(parse(argc, argv), gate.hooks());
    serve(gate, engine);
  } catch (const std::exception& error) {
    weft::log::error("{}", error.what());
    return 1;
  }
  return 0;
}

// Times what the engine's thread does in a step of decodes beside the model: scheduling, the plan, taking tokens. The model is
// one that returns a constant token at once.
//
//   weft_engine_step_bench [SEQUENCES] [CONTEXT] [RANKS]
//
// Prints the median of 1,000 steps, in all and per sequence, and how often a step allocated.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "engine/engine_loop.h"
#include "support/allocations.h"

namespace weft {
namespace {

constexpr int kSteps = 1000, kBlockTokens = 16;
constexpr int32_t kVocab = 150000;

class NullModel : public StepRunner {
 public:
  explicit NullModel(int64_t rows) { result_.ids.reserve(static_cast<size_t>(rows)); }
  const StepResult& run(const StepPlan& plan) override {
    result_.ids.assign(plan[plan->sampling].size(), 7);
    return result_;
  }

 private:
  StepResult result_;
};

int64_t argument(int argc, char** argv, int index, int64_t otherwise) {
  return argc > index ? std::max<int64_t>(1, std::atoll(argv[index])) : otherwise;
}

void run(int64_t sequences, int64_t context, int ranks) {
  ModelConfig config;
  config.layers = 1;
  config.q_heads = ranks;
  config.kv_heads = 1;
  config.head_dim = 128;
  const RankGrid grid({.tp = ranks, .dcp = ranks, .q_heads = config.q_heads, .kv_heads = 1, .block_tokens = kBlockTokens});
  EngineLoop::Options options;
  options.layout = {.shard = grid.shard(), .block_tokens = kBlockTokens};
  // The first sequences generate while the prompts of the last are still computed.
  options.limits = {.tokens = 8192, .sequences = sequences};
  const int64_t prefill_steps = 2 * (sequences * context / (8192 - sequences) + 1);
  const int64_t generated = prefill_steps + kSteps + 100;
  options.max_model_len = context + generated;
  options.blocks = sequences * options.layout.blocks_for(options.max_model_len);
  options.vocab = kVocab;
  options.end_tokens = {2};
  PlanBuilder builder(config, grid, {.layout = options.layout, .context_rows = 1024, .last_layer = 1});
  NullModel model(2 * sequences);
  EngineMetrics metrics;
  EngineLoop loop(options, builder, model, metrics);

  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int64_t i = 0; i < sequences; ++i) {
    Request request;
    for (int64_t t = 0; t < context; ++t) request.prompt.push_back(static_cast<int32_t>((i * 7919 + t * 31) % kVocab));
    request.max_tokens = generated;
    streams.push_back(std::make_shared<RequestStream>(static_cast<uint64_t>(i + 1), request));
    loop.add(EngineLoop::prepare(std::move(request), streams.back(), options), 0);
  }
  const auto all_decode = [&] {
    return std::all_of(streams.begin(), streams.end(), [](const auto& stream) { return !stream->events().empty(); });
  };
  while (!all_decode()) loop.step(0);

  std::vector<double> us;
  us.reserve(kSteps);
  const int64_t allocations = test::allocations_of_this_thread();
  for (int step = 0; step < kSteps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    loop.step(step);
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  const int64_t allocated = test::allocations_of_this_thread() - allocations;
  WEFT_CHECK_EQ(loop.running(), sequences);
  std::nth_element(us.begin(), us.begin() + kSteps / 2, us.end());
  const double median = us[kSteps / 2];
  std::printf("%lld sequences of %lld tokens on %d ranks: %.1f us a step, %.3f us per sequence; %lld allocations in %d steps\n",
              static_cast<long long>(sequences), static_cast<long long>(context), ranks, median,
              median / static_cast<double>(sequences), static_cast<long long>(allocated), kSteps);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  weft::run(weft::argument(argc, argv, 1, 256), weft::argument(argc, argv, 2, 4096),
            static_cast<int>(weft::argument(argc, argv, 3, 4)));
}

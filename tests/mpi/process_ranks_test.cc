// Started by mpirun: every process runs the same tests at the same time.

#include "engine/process_ranks.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <vector>

#include "base/check.h"
#include "comm/links.h"
#include "comm/mpi_group.h"
#include "engine/sizes.h"
#include "model/config.h"
#include "mpi/run.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

EngineConfig small_config() {
  EngineConfig config;
  config.model_dir = WEFT_SOURCE_DIR "/tests/goldens/llama_bias";
  config.tensor_parallel_size = 6;  // two or three processes share them
  config.decode_context_parallel_size = 2;
  config.num_gpu_blocks_override = 16;
  config.threads = 1;
  return config;
}

RankGrid grid_of(const EngineConfig& config) {
  return resolve(load_config(config.model_dir, config.num_layers), config, *make_cpu_ops(1)).grid;
}

/// Returns once all processes have come here: what one still has to read is lost once process 0 has left.
void wait_for_all() {
  Processes& processes = test::processes();
  MpiGroup all(processes, {.first = 0, .size = processes.count(), .per_process = 1});
  std::vector<std::byte> bytes(static_cast<size_t>(processes.count()) + 1);
  all.join(processes.index())
      ->all_gather(View(bytes.data(), DType::u8, {1}), View(bytes.data() + 1, DType::u8, {processes.count(), 1}));
}

TEST(ProcessRanks, TokensAreComparedWithThoseOfProcess0) {
  Processes& processes = test::processes();
  const EngineConfig config = small_config();
  const Agreement agreement = "the same flags";
  if (processes.index() == 0) {
    // Says that a step came before this one, in which some tokens were chosen. The others know of none.
    const LocalRanks ranks = lead(processes, config, agreement)(grid_of(config));
    StepPlan plan;
    plan.seal();
    ranks.announce(plan, 1);
  } else {
    try {
      follow(processes, config, [&] { return agreement; });
      ADD_FAILURE() << "the processes were taken to agree";
    } catch (const SystemError& error) {
      EXPECT_THAT(error.what(), HasSubstr("processes disagree on the tokens of the step before step 0"));
    }
    EXPECT_EQ(PlanLink(processes).receive().order, PlanLink::Order::stop);
  }
  wait_for_all();
}

}  // namespace
}  // namespace weft

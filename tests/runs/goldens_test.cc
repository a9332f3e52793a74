#include <gtest/gtest.h>

#include <filesystem>

#include "base/log.h"
#include "model/config.h"
#include "support/golden_check.h"
#include "support/golden_files.h"
#include "support/golden_grid.h"
#include "support/golden_ways.h"

namespace weft::test {
namespace {

// Whole runs against reference outputs: one rank, and the most ranks that the heads allow by either exchange. The grid between
// is weft_goldens' business.

const char* const kGoldens = WEFT_SOURCE_DIR "/tests/goldens";

class EngineOn : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::warn);  // No banner of every engine.
    golden_ = load_golden(std::filesystem::path(kGoldens) / GetParam());
    const ModelConfig config = load_config(golden_.dir);
    most_ = legal_ranks({.q_heads = config.q_heads, .kv_heads = config.grid_kv_heads()}, 4).back();
  }

  void expect_exact(const GridPoint& point) {
    SCOPED_TRACE(to_string(point));
    const std::vector<Request> requests = golden_requests(golden_, /*forced=*/false);
    Engine engine(engine_config(point, golden_.dir, ComputeDType::f32, requests));
    for (const std::string& failure : check_exact(golden_, run_requests(engine, requests, point.alone)).failures)
      ADD_FAILURE() << failure;
  }

  Golden golden_;
  Ranks most_;
};

TEST_P(EngineOn, OneRankComputesTheGolden) { expect_exact({.tp = 1, .dcp = 1, .budget = 512}); }

TEST_P(EngineOn, ManyRanksComputeTheGoldenByQueries) {
  expect_exact({.tp = most_.first, .dcp = most_.second, .interleave = 4, .budget = 64, .exchange = DcpExchange::queries});
}

TEST_P(EngineOn, ManyRanksComputeTheGoldenByKeys) {
  expect_exact({.tp = most_.first,
                .dcp = most_.second,
                .interleave = 1,
                .block_size = 8,
                .budget = 100,
                .exchange = DcpExchange::keys,
                .tight_pool = true,
                .gather_tokens = 64});
}

TEST_P(EngineOn, ServesTheGoldenInEveryWay) {
  // Small blocks, so that answers outgrow them; the most ranks, and the most that share nothing but heads.
  for (const Ranks& ranks : {most_, Ranks{most_.first, 1}}) {
    const GridPoint point{.tp = ranks.first, .dcp = ranks.second, .interleave = 2, .block_size = 4, .budget = 256};
    for (const Way way : kWays) {
      for (const std::string& failure : run_way(golden_, point, way))
        ADD_FAILURE() << to_string(point) << ", " << to_string(way) << ": " << failure;
    }
    if (most_.second == 1) break;
  }
}

TEST_P(EngineOn, Bf16StaysWithinTheLimitsOfRounding) {
  const std::vector<Request> requests = golden_requests(golden_, /*forced=*/true);
  const GridPoint point{.tp = most_.first, .dcp = most_.second, .budget = 256};
  Engine engine(engine_config(point, golden_.dir, ComputeDType::bf16, requests));
  for (const std::string& failure : check_rounded(golden_, run_requests(engine, requests, /*alone=*/false)).failures)
    ADD_FAILURE() << failure;
}

INSTANTIATE_TEST_SUITE_P(Goldens, EngineOn,
                         testing::Values("llama_tied", "llama_bias", "qwen3", "qwen3_f32", "qwen3_moe", "deepseek_v2_lite",
                                         "deepseek_v2_group", "deepseek_v3", "deepseek_v3_fp8", "deepseek_v3_mtp"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace weft::test

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/log.h"
#include "model/config.h"
#include "support/golden_check.h"
#include "support/golden_files.h"
#include "support/golden_grid.h"

namespace weft::test {
namespace {

// Whole runs over a cache of fp8, computed in float32: how far they are from the goldens, and that ranks change nothing.
// Prompts go in chunks of 64 tokens, so that most keys are read from the cache; generated tokens are the golden's.

const char* const kGoldens = WEFT_SOURCE_DIR "/tests/goldens";
constexpr double kRanksBound = 2e-3;  // of the standard deviation of the logits

class Fp8CacheOn : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::warn);
    golden_ = load_golden(std::filesystem::path(kGoldens) / GetParam());
    config_ = load_config(golden_.dir);
    requests_ = golden_requests(golden_, /*forced=*/true);
  }

  struct Cache {
    KvCacheDType dtype = KvCacheDType::fp8;
    double scale = 0;
    bool batch_invariant = false;
  };
  std::vector<Result> run(const GridPoint& point, const Cache& cache) const {
    EngineConfig config = engine_config(point, golden_.dir, ComputeDType::f32, requests_);
    config.kv_cache_dtype = cache.dtype;
    config.kv_cache_scale = cache.scale;
    config.batch_invariant = cache.batch_invariant;
    Engine engine(config);
    return run_requests(engine, requests_, /*alone=*/false);
  }

  void expect_close(const Cache& cache) const {
    SCOPED_TRACE(testing::Message() << "scale " << cache.scale);
    const RoundedReport report = check_rounded(golden_, run({.tp = 1, .dcp = 1, .budget = 64}, cache), kFp8CacheBounds);
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    EXPECT_GT(report.rms, 1e-3) << "as close as if no key were read in fp8";
  }

  /// Root of the mean square difference of two runs' logits, in standard deviations, without the worst hundredth of the rows.
  /// Not the largest: numbers that differ by a rounding of float32 now and then fall on two sides of a rounding to fp8, which
  /// moves a row by some 1e-3, and where that changes the choice of an expert by much more.
  double difference(const std::vector<Result>& a, const std::vector<Result>& b) const {
    std::vector<double> rows;  // mean squares
    const auto vocab = static_cast<size_t>(golden_.vocab);
    for (size_t i = 0; i < a.size(); ++i) {
      for (const auto member : {&Captured::logits, &Captured::gen_logits}) {
        const std::vector<float>&x = a[i].captured.*member, &y = b[i].captured.*member;
        if (x.size() != y.size()) return HUGE_VAL;
        for (size_t row = 0; row < x.size(); row += vocab) {
          double squares = 0;
          for (size_t j = row; j < row + vocab; ++j)
            squares += std::pow(static_cast<double>(x[j]) - static_cast<double>(y[j]), 2);
          rows.push_back(squares / golden_.logit_std / golden_.logit_std / static_cast<double>(vocab));
        }
      }
    }
    if (std::any_of(rows.begin(), rows.end(), [](double row) { return std::isnan(row); })) return HUGE_VAL;
    std::sort(rows.begin(), rows.end());
    rows.resize(rows.size() - rows.size() / 100);
    return std::sqrt(std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size()));
  }

  bool has_whole_groups() const { return config_.mla && config_.mla->kv_lora_rank % kLatentScaleGroup == 0; }

  Golden golden_;
  ModelConfig config_;
  std::vector<Request> requests_;
};

TEST_P(Fp8CacheOn, StaysNearTheGoldenAtAnyScale) {
  for (const double scale : {0.25, 1.0, 4.0}) expect_close({.scale = scale});
}

TEST_P(Fp8CacheOn, StaysNearTheGoldenWhenEveryKeyIsReadFromTheCache) {
  for (const double scale : {0.25, 4.0}) expect_close({.scale = scale, .batch_invariant = true});
}

TEST_P(Fp8CacheOn, RowsWithTheirScalesStayNearTheGolden) {
  if (!has_whole_groups()) GTEST_SKIP() << "no latent of whole groups";
  expect_close({.dtype = KvCacheDType::fp8_ds_mla});
}

TEST_P(Fp8CacheOn, ManyRanksComputeWhatOneDoes) {
  const Ranks most = legal_ranks({.q_heads = config_.q_heads, .kv_heads = config_.grid_kv_heads()}, 4).back();
  if (most.second == 1) GTEST_SKIP() << "no context parallelism with these heads";
  std::vector<Cache> caches = {{.scale = 0.25}};
  if (has_whole_groups()) caches.push_back({.dtype = KvCacheDType::fp8_ds_mla});
  for (const Cache& cache : caches) {
    const std::vector<Result> one = run({.tp = most.first, .dcp = 1, .budget = 64}, cache);
    for (const DcpExchange exchange : {DcpExchange::queries, DcpExchange::keys}) {
      const GridPoint point{
          .tp = most.first, .dcp = most.second, .interleave = 2, .block_size = 8, .budget = 64, .exchange = exchange};
      EXPECT_LE(difference(run(point, cache), one), kRanksBound) << to_string(point);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Fp8CacheOn,
                         testing::Values("deepseek_v2_group", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_fp8",
                                         "deepseek_v3_mtp", "llama_bias", "llama_tied", "qwen3", "qwen3_f32", "qwen3_moe"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace weft::test

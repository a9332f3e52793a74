#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

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

  /// The goldens' prompts with their answers behind them: logits and experts of every row.
  std::vector<Request> all_rows() const {
    std::vector<Request> requests;
    for (const GoldenPrompt& prompt : golden_.prompts) {
      Request request{.label = prompt.name, .prompt = prompt.input_ids, .max_tokens = 0, .ignore_eos = true};
      request.prompt.insert(request.prompt.end(), prompt.gen_ids.begin(), prompt.gen_ids.end());
      request.capture = {.all_logits = true, .record = {.router = golden_.sparse_mlp}};
      requests.push_back(std::move(request));
    }
    return requests;
  }

  /// Two runs' logits: root of the mean square difference in standard deviations, over the rows whose experts, and those of the
  /// rows before them, are the same in both. Numbers that differ by a rounding of float32 now and then fall on two sides of a
  /// rounding to fp8; where that changes the choice of an expert, the row is another computation.
  struct Distance {
    double rms = 0, worst_row = 0;
    int64_t rows = 0, rerouted = 0;
  };
  Distance distance(const std::vector<Result>& a, const std::vector<Result>& b) const {
    Distance out;
    double sum = 0;
    const auto vocab = static_cast<size_t>(golden_.vocab);
    for (size_t i = 0; i < a.size(); ++i) {
      const std::vector<float>&x = a[i].captured.logits, &y = b[i].captured.logits;
      EXPECT_EQ(x.size(), y.size());
      EXPECT_FALSE(x.empty());
      const int64_t rows = static_cast<int64_t>(x.size() / vocab), same = same_experts(a[i].captured, b[i].captured, rows);
      out.rerouted += rows - same;
      for (int64_t row = 0; row < same; ++row) {
        double squares = 0;
        for (size_t at = static_cast<size_t>(row) * vocab, end = at + vocab; at < end; ++at)
          squares += std::pow(static_cast<double>(x[at]) - static_cast<double>(y[at]), 2);
        squares /= golden_.logit_std * golden_.logit_std * static_cast<double>(vocab);
        sum += squares;
        out.worst_row = std::max(out.worst_row, std::sqrt(squares));
        ++out.rows;
      }
    }
    out.rms = std::sqrt(sum / static_cast<double>(std::max<int64_t>(out.rows, 1)));
    return out;
  }
  /// Rows before the first one that chose other experts.
  static int64_t same_experts(const Captured& a, const Captured& b, int64_t rows) {
    EXPECT_EQ(a.router.size(), b.router.size());
    for (size_t layer = 0; layer < a.router.size(); ++layer) {
      const std::vector<int32_t>&x = a.router[layer].experts, &y = b.router[layer].experts;
      const auto at = std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin();
      rows = std::min(rows, at / a.router[layer].top_k);
    }
    return rows;
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
  requests_ = all_rows();
  for (const Cache& cache : caches) {
    const std::vector<Result> one = run({.tp = most.first, .dcp = 1, .budget = 64}, cache);
    for (const DcpExchange exchange : {DcpExchange::queries, DcpExchange::keys}) {
      const GridPoint point{
          .tp = most.first, .dcp = most.second, .interleave = 2, .block_size = 8, .budget = 64, .exchange = exchange};
      const Distance far = distance(run(point, cache), one);
      EXPECT_LE(far.rms, kRanksBound) << to_string(point) << ", worst row " << far.worst_row;
      EXPECT_GT(far.rows, 4 * far.rerouted) << to_string(point) << ": too few rows to compare";
      RecordProperty("rms", std::to_string(far.rms));
      RecordProperty("worst_row", std::to_string(far.worst_row));
      RecordProperty("rerouted_rows", std::to_string(far.rerouted) + " of " + std::to_string(far.rows + far.rerouted));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Fp8CacheOn,
                         testing::Values("deepseek_v2_group", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_fp8",
                                         "deepseek_v3_mtp", "llama_bias", "llama_tied", "qwen3", "qwen3_f32", "qwen3_moe"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace weft::test

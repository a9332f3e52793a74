#include "engine/replay.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "engine/config_text.h"
#include "engine/engine.h"
#include "support/checkpoint_writer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// An engine with seeded weights whose flights land in a folder of their own.
class Replay : public testing::Test {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::off);
    ::setenv("TMPDIR", flights_.path().c_str(), 1);
    std::ofstream(folder_.path() / "config.json")
        << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 52,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 67,
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": false,
          "torch_dtype": "float32", "hidden_act": "silu"})";
    config_.model_dir = folder_.path();
    config_.load_format = LoadFormat::dummy;
    config_.tensor_parallel_size = config_.decode_context_parallel_size = 2;
    config_.block_size = 4;
    config_.num_gpu_blocks_override = 80;  // of 8 tokens
    config_.max_num_seqs = 4;
    config_.max_num_batched_tokens = 32;
    config_.threads = 2;
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    spdlog::set_level(spdlog::level::warn);
  }

  static Request request(int64_t prompt, int64_t max_tokens, int32_t first = 2) {
    Request out;
    for (int64_t i = 0; i < prompt; ++i) out.prompt.push_back(static_cast<int32_t>((first + 7 * i) % 67));
    out.max_tokens = max_tokens;
    out.ignore_eos = true;
    return out;
  }

  /// The file that the engine writes now.
  fs::path flight_of(Engine& engine) const {
    engine.write_flight();
    for (int i = 0; i < 6000; ++i) {
      engine.run({request(1, 1)});  // behind the writing
      for (const auto& entry : fs::directory_iterator(flights_.path())) return entry.path();
    }
    return {};
  }

  test::TemporaryFolder folder_, flights_;
  EngineConfig config_;
};

TEST_F(Replay, OfReusedCopiedAndSampledBlocksGivesTheSame) {
  fs::path path;
  {
    Engine engine(config_);
    engine.run({request(45, 10), request(20, 6, 3)});
    Request shared = request(50, 12);
    shared.prompt[43] = 1;  // 43 tokens of the first one: five whole blocks and a part of the sixth
    shared.choices = 2;
    engine.run({shared, request(30, 8, 5)});
    path = flight_of(engine);
  }
  struct stat file {};
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u) << "prompts are nobody else's";

  Flight flight = Flight::read(path);
  int64_t copies = 0;
  for (const FlightStep& step : flight.steps) {
    const StepPlan plan = StepPlan::from_bytes(step.plan);
    copies += static_cast<int64_t>(plan->copies.count);
  }
  EXPECT_GT(copies, 0);
  std::vector<std::string> lines;
  const ReplayReport same = replay(flight, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_FALSE(same.difference.has_value());
  EXPECT_EQ(same.failure, "");
  EXPECT_EQ(same.steps, static_cast<int64_t>(flight.steps.size()));
  EXPECT_EQ(same.rebuilt_tokens, 0);
  EXPECT_EQ(lines.size(), flight.steps.size());
  EXPECT_THAT(lines.back(), HasSubstr("the same"));

  const size_t last = flight.steps.size() - 1;
  flight.steps[last].ids[0] ^= 1;
  const ReplayReport other_token = replay(flight);
  ASSERT_TRUE(other_token.difference.has_value());
  EXPECT_EQ(other_token.steps, same.steps - 1);
  EXPECT_EQ(other_token.difference->row, 0);
  EXPECT_EQ(other_token.difference->recorded ^ 1, other_token.difference->now);

  flight.steps[last].ids[0] ^= 1;
  flight.steps[last].rank_checksums[1] ^= 1;
  const ReplayReport other_rank = replay(flight);
  ASSERT_TRUE(other_rank.difference.has_value());
  EXPECT_EQ(other_rank.difference->row, -1);
  EXPECT_EQ(other_rank.difference->rank, 1);
}

TEST_F(Replay, ComputesKvAgainThatIsOlderThanTheFlight) {
  fs::path path;
  {
    Engine engine(config_);
    engine.run({request(70, 340), request(21, 300, 3)});  // more steps than are kept
    path = flight_of(engine);
  }
  const Flight flight = Flight::read(path);
  ASSERT_LT(flight.steps.size(), 300u);
  const ReplayReport report = replay(flight);
  EXPECT_FALSE(report.difference.has_value());
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(report.steps, static_cast<int64_t>(flight.steps.size()));
  EXPECT_GT(report.rebuilt_tokens, 100);
}

TEST_F(Replay, HasThePoolOfTheEngineHoweverItWasSized) {
  config_.num_gpu_blocks_override = 0;
  fs::path first;
  int64_t blocks = 0;
  {
    Engine engine(config_);
    blocks = engine.sizes().capacity.blocks;
    engine.run({request(10, 3)});
    first = flight_of(engine);
    engine.write_flight();  // nothing has run since: a name of its own
    engine.write_flight();
    engine.run({request(1, 1)});
  }
  EXPECT_EQ(config_from_text(Flight::read(first).config).num_gpu_blocks_override, blocks);
  EXPECT_EQ(std::distance(fs::directory_iterator(flights_.path()), fs::directory_iterator()), 3);
}

TEST_F(Replay, AStepThatFailedThenIsRunToTheEnd) {
  fs::path path;
  {
    Engine engine(config_);
    engine.run({request(10, 3)});
    path = flight_of(engine);
  }
  Flight flight = Flight::read(path);
  flight.steps.back().completed = false;
  const ReplayReport report = replay(flight);
  EXPECT_TRUE(report.failed_then);
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(report.steps, static_cast<int64_t>(flight.steps.size()) - 1);
}

TEST_F(Replay, DamagedFilesAreRefused) {
  fs::path path;
  {
    Engine engine(config_);
    engine.run({request(10, 3)});
    path = flight_of(engine);
  }
  const auto refusal = [](const fs::path& file) -> std::string {
    try {
      replay(Flight::read(file));
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const auto altered = [&](size_t at, size_t size) {
    std::string text = whole.substr(0, size);
    if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 0x40);
    const fs::path file = folder_.path() / "altered";
    std::ofstream(file, std::ios::binary) << text;
    return file;
  };
  EXPECT_THAT(refusal(folder_.path() / "nowhere"), HasSubstr("cannot open the flight file"));
  EXPECT_THAT(refusal(altered(0, whole.size())), HasSubstr("not a flight file"));
  EXPECT_THAT(refusal(altered(whole.size(), whole.size() - 5)), HasSubstr("ends too early"));
  EXPECT_THAT(refusal(altered(whole.size(), 100)), HasSubstr("damaged"));
}

}  // namespace
}  // namespace weft

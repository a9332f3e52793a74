#include "engine/replay.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "engine/config_text.h"
#include "engine/small_engine.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A small engine, whose flights land in a folder of their own. It samples, unless a test says otherwise.
class Replay : public test::EngineOfTwoRanks {
 protected:
  void SetUp() override {
    EngineOfTwoRanks::SetUp();
    ::setenv("TMPDIR", flights_.path().c_str(), 1);
    config_.num_gpu_blocks_override = 80;  // of 8 tokens
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    EngineOfTwoRanks::TearDown();
  }

  static Request request(int64_t prompt, int64_t max_tokens, int32_t first = 2) {
    Request out = EngineOfTwoRanks::request(prompt, max_tokens, first);
    out.sampling.temperature = 1;
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

  test::TemporaryFolder flights_;
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

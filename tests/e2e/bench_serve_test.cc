// `weft bench serve` against `weft serve`, each in a process of its own.

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/chat_model.h"
#include "e2e/served_model.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::ServedModel;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kModel = WEFT_SOURCE_DIR "/tests/goldens/deepseek_v2_lite";
// Two ranks that share every sequence; room for 40 blocks of 32 tokens.
const std::vector<std::string> kFlags = {"-tp",
                                         "2",
                                         "-dcp",
                                         "2",
                                         "--dtype",
                                         "float32",
                                         "--num-gpu-blocks-override",
                                         "40",
                                         "--threads",
                                         "2",
                                         "--disable-log-requests"};

struct Ran {
  int status = -1;
  std::string out, err;

  /// The value of a row of the report, "" if it has none.
  std::string row(const std::string& name) const {
    const size_t at = out.find("\n" + name + ":");
    if (at == std::string::npos) return "";
    std::istringstream line(out.substr(at + name.size() + 2));
    std::string value;
    line >> value;
    return value;
  }
  double number(const std::string& name) const { return row(name).empty() ? std::nan("") : std::stod(row(name)); }
};

class BenchServe : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("weft_bench_serve_test." + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string read(const fs::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  Ran run(const std::string& arguments, const std::string& before = "") const {
    const std::string command = before + " " WEFT_BINARY " bench serve " + arguments + " >" + file("out") + " 2>" + file("err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(file("out")), read(file("err"))};
  }
  Ran run(const ServedModel& server, const std::string& arguments, const std::string& before = "") const {
    return run("--port " + std::to_string(server.port()) + " " + arguments, before);
  }

  fs::path folder_;
};

TEST_F(BenchServe, CountsEveryTokenAndTheFileSaysWhatTheReportSays) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  const Ran ran =
      run(server,
          "--num-prompts 24 --random-input-len 30 --random-output-len 7 --max-concurrency 6 --request-rate 500 --goodput "
          "ttft:60000 tpot:60000 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99 --save-result "
          "--save-detailed --metadata run=7 note=x --result-filename " +
              file("result.json"));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.row("Successful requests"), "24") << ran.out;
  EXPECT_EQ(ran.row("Failed requests"), "0");
  EXPECT_EQ(ran.row("Total input tokens"), "720");
  EXPECT_EQ(ran.row("Total generated tokens"), "168");
  EXPECT_LE(ran.number("Peak concurrent requests"), 6);

  const json result = json::parse(read(file("result.json")));
  EXPECT_EQ(result["model_id"], kModel);
  EXPECT_EQ(result["num_prompts"], 24);
  EXPECT_EQ(result["run"], "7");
  EXPECT_EQ(result["note"], "x");
  for (const auto& [name, key] :
       std::vector<std::pair<std::string, std::string>>{{"Successful requests", "completed"},
                                                        {"Total input tokens", "total_input_tokens"},
                                                        {"Total generated tokens", "total_output_tokens"},
                                                        {"Maximum request concurrency", "max_concurrency"},
                                                        {"Request rate configured (RPS)", "request_rate"},
                                                        {"Benchmark duration (s)", "duration"},
                                                        {"Request throughput (req/s)", "request_throughput"},
                                                        {"Request goodput (req/s)", "request_goodput"},
                                                        {"Output token throughput (tok/s)", "output_throughput"},
                                                        {"Peak output token throughput (tok/s)", "max_output_tokens_per_s"},
                                                        {"Peak concurrent requests", "max_concurrent_requests"},
                                                        {"Total token throughput (tok/s)", "total_token_throughput"},
                                                        {"Mean TTFT (ms)", "mean_ttft_ms"},
                                                        {"Median TPOT (ms)", "median_tpot_ms"},
                                                        {"P50 ITL (ms)", "p50_itl_ms"},
                                                        {"P99 E2EL (ms)", "p99_e2el_ms"}})
    EXPECT_NEAR(ran.number(name), result[key].get<double>(), 0.0051) << name;
  EXPECT_EQ(result["output_lens"], json(std::vector<int>(24, 7)));
  EXPECT_EQ(result["input_lens"], json(std::vector<int>(24, 30)));
  EXPECT_TRUE(server.becomes_quiet());
}

TEST_F(BenchServe, FindsSharedPrefixesInTheCache) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  const Ran ran =
      run(server, "--num-prompts 8 --random-prefix-len 64 --random-input-len 6 --random-output-len 2 --max-concurrency 1");
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.row("Total input tokens"), "560");
  EXPECT_EQ(ran.row("Cached input tokens"), "448") << "64 of all prompts but the first";
  const Ran prefixes =
      run(server,
          "--dataset-name prefix_repetition --num-prompts 8 --prefix-repetition-num-prefixes 2 --seed 5 "
          "--prefix-repetition-prefix-len 64 --prefix-repetition-suffix-len 6 --output-len 2 --max-concurrency 1");
  ASSERT_EQ(prefixes.status, 0) << prefixes.err;
  EXPECT_EQ(prefixes.row("Cached input tokens"), "384") << "64 of all prompts but the first two";
}

TEST_F(BenchServe, SweepsOverLoadsAndDrawsThem) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  const Ran ran = run(server,
                      "--num-prompts 8 --random-input-len 10 --random-output-len 4 --request-rate 50,100,inf --save-result "
                      "--result-dir " +
                          file("results") + " --result-filename sweep.jsonl --plot " + file("plot.svg"));
  ASSERT_EQ(ran.status, 0) << ran.err;
  std::istringstream lines(read(file("results/sweep.jsonl")));
  std::vector<json> rates;
  for (std::string line; std::getline(lines, line);) rates.push_back(json::parse(line)["request_rate"]);
  EXPECT_THAT(rates, ::testing::ElementsAre(50.0, 100.0, "inf"));
  EXPECT_THAT(read(file("plot.svg")), AllOf(HasSubstr("<svg"), HasSubstr("inf: p99"), HasSubstr("requests per second")));
  EXPECT_EQ(run(server, "--num-prompts 2 --random-input-len 10 --random-output-len 4 --save-result --label abc --result-dir " +
                            file("named"))
                .status,
            0);
  const fs::path name = fs::directory_iterator(file("named"))->path().filename();
  EXPECT_THAT(name.string(), ::testing::MatchesRegex("abc-infqps-deepseek_v2_lite-[0-9]+-[0-9]+\\.json"));
}

TEST_F(BenchServe, ReplaysATraceOfConversations) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  std::ofstream(file("trace.jsonl"))
      << R"({"timestamp": 1000, "turns": [{"input_length": 40, "output_length": 8}, {"input_length": 10, "output_length": 8, "delay": 50}]})"
      << "\n"
      << R"({"timestamp": 1100, "input_length": 20, "output_length": 3})"
      << "\n";
  const Ran ran = run(server, "--dataset-name timed_trace --dataset-path " + file("trace.jsonl"));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.row("Successful requests"), "3");
  EXPECT_EQ(ran.row("Total input tokens"), std::to_string(40 + (40 + 8 + 10) + 20))
      << "the second prompt holds the first, and its answer";
  EXPECT_EQ(ran.row("Total generated tokens"), "19");
  EXPECT_EQ(ran.row("Cached input tokens"), "47") << "all of the first turn but its last token, which was never computed";
}

TEST_F(BenchServe, SpeaksTextAndChats) {
  fs::create_directories(file("model"));
  test::write_chat_model(file("model"));
  const ServedModel server(WEFT_BINARY, file("model"), {"--load-format", "dummy", "--disable-log-requests"});
  const std::string lengths =
      "--num-prompts 5 --random-input-len 20 --random-output-len 6 --save-result --save-detailed --result-filename " +
      file("r.json");
  const Ran text = run(server, lengths + " --model " + file("model"));
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_EQ(text.row("Total input tokens"), "100") << "the model's folder has the tokenizer";
  EXPECT_EQ(text.row("Total generated tokens"), "30");
  EXPECT_EQ(json::parse(read(file("r.json")))["tokenizer_id"], file("model"));
  const Ran chat = run(server, lengths + " --backend openai-chat --tokenizer " + file("model"));
  ASSERT_EQ(chat.status, 0) << chat.err;
  EXPECT_EQ(chat.row("Successful requests"), "5");
  EXPECT_GT(chat.number("Total input tokens"), 100) << "the template adds to it";
  EXPECT_EQ(chat.row("Total generated tokens"), "30");
}

TEST_F(BenchServe, RequestsThatTheServerRefusesAreFailures) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  const Ran all = run(server, "--num-prompts 3 --random-input-len 5000");
  EXPECT_EQ(all.status, 1);
  EXPECT_EQ(all.row("Failed requests"), "3");
  EXPECT_THAT(all.err, AllOf(HasSubstr("3 x HTTP 400: "), HasSubstr("weft: no request was answered")));
  const Ran some = run(
      server, "--num-prompts 20 --random-input-len 900 --random-output-len 100 --random-range-ratio 0.5 --max-concurrency 4");
  EXPECT_EQ(some.status, 0) << some.err;
  EXPECT_EQ(some.number("Successful requests") + some.number("Failed requests"), 20);
  EXPECT_GT(some.number("Failed requests"), 0);
}

TEST_F(BenchServe, WithoutAServerItSaysSo) {
  const Ran ran = run("--port 1");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("weft: no server to benchmark: cannot connect: Connection refused, at http://127.0.0.1:1"),
                    HasSubstr("--base-url")));
  EXPECT_EQ(ran.out, "");
}

TEST_F(BenchServe, AKeyIsSentWhereTheEnvironmentHasOne) {
  const ServedModel server(WEFT_BINARY, kModel, {"--dtype", "float32", "--api-key", "right", "--disable-log-requests"});
  const std::string arguments =
      "--num-prompts 1 --random-input-len 5 --random-output-len 2 --model x --served-model-name " + kModel;
  EXPECT_EQ(run(server, arguments, "OPENAI_API_KEY=right").status, 0);
  const Ran wrong = run(server, arguments, "OPENAI_API_KEY=wrong");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("HTTP 401"));
  EXPECT_THAT(run(server, "--num-prompts 1", "OPENAI_API_KEY=wrong").err, HasSubstr("name one by --model"));
}

TEST_F(BenchServe, InterruptedItReportsWhatWasAnswered) {
  const ServedModel server(WEFT_BINARY, kModel, kFlags);
  const Ran ran = run(server, "--num-prompts 10000 --random-input-len 4 --random-output-len 4 --request-rate 20",
                      "timeout --foreground --preserve-status --signal=INT --kill-after=60 3");
  EXPECT_EQ(ran.status, 1) << ran.err;
  EXPECT_GT(ran.number("Successful requests"), 0);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("interrupted: "), HasSubstr(" of 10000 requests were answered")));
}

}  // namespace
}  // namespace weft

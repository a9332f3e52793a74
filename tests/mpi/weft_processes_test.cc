// The program in several processes, as its users start it.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "e2e/served_model.h"
#include "server/prometheus_text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

const fs::path kGoldens = WEFT_SOURCE_DIR "/tests/goldens";
const std::string kMpirun = WEFT_MPIEXEC, kWeft = WEFT_BINARY;
/// Time for a machine that is busy to start MPI and load a model; no measurement.
constexpr std::chrono::seconds kStart{120};

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

struct Outcome {
  int status = -1;
  std::string out, err;
};

class WeftProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / fmt::format("weft_processes_test.{}", ::getpid());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  fs::path out() const { return dir_ / "stdout"; }
  fs::path err() const { return dir_ / "stderr"; }
  Outcome run(const std::string& command) const {
    const int status = std::system(fmt::format("{} >{} 2>{}", command, out().string(), err().string()).c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out()), read(err())};
  }
  static std::string golden(const std::string& name) { return (kGoldens / name).string(); }

  fs::path dir_;
};

TEST_F(WeftProcesses, GiveTheSameTokensAsOne) {
  struct Case {
    std::string model, flags;
    int processes;
  };
  const std::vector<Case> cases = {
      {"llama_tied", "-tp 4 -dcp 4 --dtype float32", 2},
      {"llama_tied", "-tp 4 -dcp 4 --dtype bfloat16 --cp-kv-cache-interleave-size 4", 4},
      {"qwen3_f32", "-tp 4 -dcp 2", 2},   // groups inside of processes
      {"llama_bias", "-tp 6 -dcp 2", 2},  // a group that two processes share with one rank each, between two that they do not
      {"deepseek_v2_lite", "-tp 4 -dcp 4 --dtype float32", 2},
      {"deepseek_v2_lite", "-tp 4 -dcp 4 --dcp-exchange keys", 2},
      {"qwen3_moe", "-tp 4 -dcp 1", 2},
  };
  for (const Case& c : cases) {
    const std::string command = fmt::format(
        "{} generate {} {} --prompt-ids 11,42,7,200,99,5,6,7,8,9,10 --max-tokens 12 --kv-cache-memory-bytes 4M --json", kWeft,
        golden(c.model), c.flags);
    const Outcome alone = run(command), together = run(fmt::format("{} -n {} {}", kMpirun, c.processes, command));
    ASSERT_EQ(alone.status, 0) << command << "\n" << alone.err;
    ASSERT_EQ(together.status, 0) << command << "\n" << together.err;
    EXPECT_THAT(alone.out, HasSubstr("token_ids"));
    EXPECT_EQ(together.out, alone.out) << command;
  }
}

TEST_F(WeftProcesses, EvalWritesItsResultsOnce) {
  std::ofstream(dir_ / "in.json") << R"({"prompts":[{"name":"a","input_ids":[5,6,7],"generate":3},)"
                                  << R"({"name":"b","input_ids":[8,9],"generate":4}]})";
  const auto command = [&](const char* name) {
    return fmt::format("{} eval {} -tp 2 -dcp 2 --dtype float32 --kv-cache-memory-bytes 4M --prompts {} --out {}", kWeft,
                       golden("llama_tied"), (dir_ / "in.json").string(), (dir_ / name).string());
  };
  const Outcome alone = run(command("alone")), together = run(kMpirun + " -n 2 " + command("together"));
  ASSERT_EQ(alone.status, 0) << alone.err;
  ASSERT_EQ(together.status, 0) << together.err;
  EXPECT_EQ(count_of(together.out, "tokens read"), 1) << together.out;
  EXPECT_EQ(read(dir_ / "together"), read(dir_ / "alone"));
}

TEST_F(WeftProcesses, SizesAreThoseOfOneProcess) {
  const std::string command = kWeft + " inspect " + golden("llama_tied") + " -tp 4 -dcp 4 --kv-cache-memory-bytes 4M";
  const Outcome alone = run(command), together = run(kMpirun + " -n 2 " + command);
  EXPECT_EQ(together.status, 0) << together.err;
  EXPECT_EQ(together.out, alone.out);
}

TEST_F(WeftProcesses, MetricsOfTheFirstSayWhichRanksTheyTellOf) {
  const fs::path script = dir_ / "weft";
  std::ofstream(script) << "#!/bin/sh\nexec " << kMpirun << " -n 2 " << kWeft << " \"$@\"\n";
  fs::permissions(script, fs::perms::owner_all);
  test::ServedModel server(script.string(), golden("llama_tied"),
                           {"-tp", "4", "-dcp", "4", "--dtype", "float32", "--kv-cache-memory-bytes", "4M"});
  const test::Answer answer =
      server.client().post("/v1/completions", R"({"prompt":[5,6,7,8,9,10,11],"max_tokens":8,"ignore_eos":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const test::PrometheusText text(server.client().get("/metrics").body);
  const test::PrometheusText::Labels labels = text.families().at("weft_parallel_info").samples.at(0).labels;
  EXPECT_EQ(labels.at("processes"), "2");
  EXPECT_EQ(labels.at("ranks_here"), "0-1");
  EXPECT_EQ(labels.at("tensor_parallel_size"), "4");
  EXPECT_GT(text.value("weft_exchange_bytes_total", {{"rank", "0"}, {"operation", "exchange_partials"}}), 0);
  EXPECT_EQ(text.value("weft_exchange_bytes_total", {{"rank", "0"}}), text.value("weft_exchange_bytes_total", {{"rank", "1"}}));
  EXPECT_THROW(text.value("weft_exchange_bytes_total", {{"rank", "2"}}), std::runtime_error);
  EXPECT_EQ(text.families().at("weft_kv_rank_tokens").samples.size(), 4u) << "what each rank holds is known to all";
  EXPECT_EQ(text.value("vllm:generation_tokens_total"), 8);
  server.signal(SIGTERM);
  server.wait();
}

TEST_F(WeftProcesses, WhatCannotBeDoneIsSaidOnce) {
  const std::string generate = " generate " + golden("llama_tied") + " --prompt-ids 5 --max-tokens 2 ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"-n 2 " + kWeft + generate + "-tp 1", "--tensor-parallel-size must be a multiple of the number of processes, here 2, 4"},
      {"-n 3 " + kWeft + generate + "-tp 4", "got 4, processes 3"},
      {"-n 2 " + kWeft + generate + "-tp 2 --bogus 1", "unknown flag --bogus"},
      {"-n 2 " + kWeft + generate + "-tp 2 --num-layers 99", "--num-layers must be"},
      {"-n 2 " + kWeft + generate + "-tp 2 --num-gpu-blocks-override 100000000", "not enough memory"},
      {"-n 2 " + kWeft + " generate " + golden("llama_tied") + " -tp 2 --prompt-ids 2000000000", "vocabulary"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Outcome outcome = run(kMpirun + " " + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
    EXPECT_EQ(count_of(outcome.err, reason), 1) << arguments << "\n" << outcome.err;
  }
}

TEST_F(WeftProcesses, MustBeStartedWithTheSameFlags) {
  const std::string generate = kWeft + " generate " + golden("llama_tied") + " --prompt-ids 5 -tp 2 --kv-cache-memory-bytes 4M";
  const Outcome outcome = run(fmt::format("{} -n 1 {} --block-size 16 : -n 1 {} --block-size 32", kMpirun, generate, generate));
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("--block-size 32 in process 1, --block-size 16 in process 0"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("generated")));
}

TEST_F(WeftProcesses, ServeAnswersAsOneAndEndsWhenTold) {
  const std::string body =
      R"({"prompt":[11,42,7,200,99],"max_tokens":12,"temperature":0,"ignore_eos":true,"return_token_ids":true})";
  // Starts the server, asks it once, and ends it; its own process is the shell's child.
  const std::string script = dir_ / "serve.sh";
  std::ofstream(script) << "\"$@\" >" << (dir_ / "url").string() << " 2>" << (dir_ / "log").string() << " &\n"
                        << "for i in $(seq 1200); do\n"
                        << "  url=$(sed -n 's/^weft serves at //p' " << (dir_ / "url").string() << ")\n"
                        << "  [ -z \"$url\" ] || break\n  sleep 0.1\ndone\n"
                        << "curl -sS $url/v1/completions -H 'Content-Type: application/json' -d '" << body << "'\n"
                        << "kill -TERM $!\nwait $!\necho\necho status $?\n";
  const std::string serve =
      fmt::format("{} serve {} -tp 4 -dcp 4 --dtype float32 --kv-cache-memory-bytes 4M --port 0", kWeft, golden("llama_tied"));
  const std::regex token_ids("\"token_ids\":\\[[0-9,]+\\]");
  std::vector<std::string> answers;
  for (const std::string& launch : {serve, kMpirun + " -n 2 " + serve}) {
    const Outcome outcome = run(fmt::format("sh {} {}", script, launch));
    std::smatch found;
    ASSERT_TRUE(std::regex_search(outcome.out, found, token_ids)) << outcome.out << outcome.err << read(dir_ / "log");
    answers.push_back(found.str());
    EXPECT_THAT(outcome.out, HasSubstr("status 0")) << read(dir_ / "log");
  }
  EXPECT_EQ(answers[1], answers[0]);
}

/// A run of two processes that goes on for much longer than a test.
class WeftLongRun : public WeftProcesses {
 protected:
  void SetUp() override {
    WeftProcesses::SetUp();
    const fs::path model = dir_ / "model";
    fs::create_directories(model);
    for (const auto& entry : fs::directory_iterator(golden("llama_tied")))
      if (entry.path().filename() != "config.json") fs::create_symlink(entry.path(), model / entry.path().filename());
    const std::regex positions("\"max_position_embeddings\": *[0-9]+");
    std::ofstream(model / "config.json") << std::regex_replace(read(golden("llama_tied") + "/config.json"), positions,
                                                               "\"max_position_embeddings\": 4000000");

    // Each process writes its number and its end beside the output of all. The shells do not end with mpirun's SIGTERM.
    const std::string script = dir_ / "process.sh";
    std::ofstream(script) << "trap '' TERM\n"
                          << kWeft << " \"$@\" 2>" << err().string() << ".$OMPI_COMM_WORLD_RANK &\n"
                          << "echo $! >" << pid_file(9).string().substr(0, pid_file(9).string().size() - 1)
                          << "$OMPI_COMM_WORLD_RANK\nwait $!\necho $? >" << (dir_ / "status.").string()
                          << "$OMPI_COMM_WORLD_RANK\n";
    const std::string command = fmt::format(
        "exec {} -n 2 sh {} generate {} -tp 4 -dcp 4 --prompt-ids 5,6,7 --max-tokens 3000000 "
        "--kv-cache-memory-bytes 1G >{} 2>{}",
        kMpirun, script, model.string(), out().string(), err().string());
    mpirun_ = ::fork();
    if (mpirun_ == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    // The table's header and some tokens.
    const auto deadline = Clock::now() + kStart;
    while (count_of(read(out()), "\n") < 5 && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_GE(count_of(read(out()), "\n"), 5) << read(err()) << read(err().string() + ".0");
  }
  void TearDown() override {
    if (mpirun_ > 0) {
      ::kill(mpirun_, SIGKILL);
      ::waitpid(mpirun_, nullptr, 0);
    }
    WeftProcesses::TearDown();
  }

  fs::path pid_file(int process) const { return dir_ / fmt::format("pid.{}", process); }
  pid_t pid_of(int process) const {
    const std::string text = read(pid_file(process));
    return text.empty() ? 0 : std::atoi(text.c_str());
  }

  /// Sends `signal` to one process. The other must end by itself within 10 s, with an error that tells why.
  void expect_the_other_ends(int victim, int signal, const std::string& why) {
    const int survivor = 1 - victim;
    const pid_t victim_pid = pid_of(victim), survivor_pid = pid_of(survivor);
    ASSERT_GT(victim_pid, 1);
    ASSERT_GT(survivor_pid, 1);
    ASSERT_EQ(::kill(victim_pid, signal), 0);
    const auto began = Clock::now();
    while (::kill(survivor_pid, 0) == 0 && Clock::now() - began < kStart)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_LE(std::chrono::duration<double>(Clock::now() - began).count(), 10.0);

    int status = 0;
    ASSERT_EQ(::waitpid(mpirun_, &status, 0), mpirun_);
    mpirun_ = 0;
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(read(dir_ / fmt::format("status.{}", survivor)), "1\n");
    EXPECT_THAT(read(fmt::format("{}.{}", err().string(), survivor)),
                HasSubstr(fmt::format("process {} (pid {}) of 2 {}", victim, victim_pid, why)));
  }

  pid_t mpirun_ = 0;
};

TEST_F(WeftLongRun, TheFirstEndsWhenTheSecondIsKilled) { expect_the_other_ends(1, SIGKILL, "is gone"); }
TEST_F(WeftLongRun, TheSecondEndsWhenTheFirstIsKilled) { expect_the_other_ends(0, SIGKILL, "is gone"); }
TEST_F(WeftLongRun, TheFirstEndsWhenTheSecondHangs) { expect_the_other_ends(1, SIGSTOP, "has given no sign of life"); }
TEST_F(WeftLongRun, TheSecondEndsWhenTheFirstHangs) { expect_the_other_ends(0, SIGSTOP, "has given no sign of life"); }

}  // namespace
}  // namespace weft

#include "tools/bench_settings.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/user_error.h"

namespace weft {
namespace {

using test::user_error;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Arguments = std::vector<std::string>;

const char* no_variables(const char*) { return nullptr; }
BenchSettings parse(Arguments arguments, const Environment& environment = no_variables) {
  arguments.insert(arguments.begin(), {"bench", "serve"});
  return bench_settings(parse_command_line(arguments, environment), environment);
}

TEST(BenchSettings, WithoutFlagsAreThoseOfVllm) {
  const BenchSettings out = parse({});
  EXPECT_EQ(out.server.address.url(), "http://127.0.0.1:8000");
  EXPECT_EQ(out.server.endpoint, "/v1/completions");
  EXPECT_EQ(out.data.name, "random");
  EXPECT_EQ(out.data.random.prompts, 1000);
  EXPECT_EQ(out.data.random.input_len, 1024);
  EXPECT_EQ(out.data.random.output_len, 128);
  EXPECT_THAT(out.load.rates, ElementsAre(std::numeric_limits<double>::infinity()));
  EXPECT_THAT(out.load.concurrencies, ElementsAre(std::nullopt));
  EXPECT_EQ(out.load.arrivals.burstiness, 1);
  EXPECT_THAT(out.results.metrics, ElementsAre("ttft", "tpot", "itl"));
  EXPECT_THAT(out.results.percentiles, ElementsAre(99));
  EXPECT_TRUE(out.form.ignore_eos) << "random";
  EXPECT_FALSE(out.results.save);
}

TEST(BenchSettings, AreReadFromFlagsHoweverTheyAreSpelled) {
  const BenchSettings out = parse({"--backend",
                                   "openai-chat",
                                   "--base-url=http://h:9/api",
                                   "--num_prompts",
                                   "5",
                                   "--request-rate",
                                   "1.5,inf",
                                   "--goodput",
                                   "ttft:200",
                                   "tpot:50.5",
                                   "--tokenizer",
                                   "t",
                                   "--random_range_ratio=0.5",
                                   "--seed",
                                   "7",
                                   "--max-concurrency",
                                   "16",
                                   "--header",
                                   "a=b=c",
                                   "d=",
                                   "--temperature",
                                   "0",
                                   "--top-k",
                                   "-1",
                                   "--extra-body",
                                   "{\"x\": {\"y\": 1}}",
                                   "--disable-tqdm",
                                   "--metric-percentiles",
                                   "50,99.9"});
  EXPECT_TRUE(out.form.chat);
  EXPECT_EQ(out.server.endpoint, "/v1/chat/completions");
  EXPECT_EQ(out.server.address.url(), "http://h:9/api");
  EXPECT_EQ(out.data.random.prompts, 5);
  EXPECT_EQ(out.load.rates.size(), 2u);
  EXPECT_TRUE(std::isinf(out.load.rates[1]));
  EXPECT_EQ(out.load.seed, 7u);
  EXPECT_EQ(out.load.concurrencies.front(), 16);
  EXPECT_EQ(out.results.objectives.ttft_ms, 200);
  EXPECT_EQ(out.results.objectives.tpot_ms, 50.5);
  EXPECT_FALSE(out.results.objectives.e2el_ms);
  EXPECT_THAT(out.server.headers, Contains(Pair("a", "b=c")));
  EXPECT_THAT(out.server.headers, Contains(Pair("d", "")));
  EXPECT_EQ(out.form.extra.dump(), R"({"temperature":0.0,"top_k":-1,"x":{"y":1}})");
  EXPECT_FALSE(out.results.progress);
  EXPECT_THAT(out.results.percentiles, ElementsAre(50, 99.9));
}

TEST(BenchSettings, TheGeneralLengthsMeanThoseOfTheDataSet) {
  const BenchSettings out = parse({"--input-len", "7", "--output-len", "8"});
  EXPECT_EQ(out.data.random.input_len, 7);
  EXPECT_EQ(out.data.random.output_len, 8);
  EXPECT_EQ(out.data.prefix_repetition.output_len, 8);
  EXPECT_EQ(out.data.sharegpt.output_len, 8);
}

TEST(BenchSettings, TheKeyOfTheEnvironmentIsSent) {
  const auto environment = [](const char* name) { return std::string_view(name) == "OPENAI_API_KEY" ? "k" : nullptr; };
  EXPECT_THAT(parse({}, environment).server.headers, Contains(Pair("Authorization", "Bearer k")));
  EXPECT_THAT(parse({}).server.headers, ::testing::Not(Contains(Pair("Authorization", ::testing::_))));
}

TEST(BenchSettings, AModelThatIsAFolderGivesTheTokenizer) {
  const std::string model = WEFT_SOURCE_DIR "/models/demo";
  EXPECT_EQ(parse({"--model", model}).data.tokenizer, model);
  EXPECT_THAT(parse({"--model", model, "--skip-tokenizer-init"}).data.tokenizer, IsEmpty());
  EXPECT_THAT(parse({"--model", "some/name"}).data.tokenizer, IsEmpty());
}

TEST(BenchSettings, WhatCannotBeIsRefused) {
  for (const auto& [arguments, reason] : std::vector<std::pair<Arguments, std::string>>{
           {{"--backend", "tgi"}, "--backend must be one of openai, openai-chat, vllm"},
           {{"--base-url", "https://h"}, "TLS"},
           {{"--base-url", "http://h", "--port", "1"}, "exclude"},
           {{"--backend", "openai-chat", "--endpoint", "/v1/completions"}, "--endpoint"},
           {{"--endpoint", "/v1/chat/completions"}, "openai-chat"},
           {{"--num-prompts", "0"}, "--num-prompts must be a whole number, 1 to"},
           {{"--dataset-name", "sonnet"}, "random, sharegpt, prefix_repetition, timed_trace"},
           {{"--dataset-name", "sharegpt"}, "--dataset-path"},
           {{"--dataset-path", "x"}, "takes no --dataset-path"},
           {{"--dataset-name", "sharegpt", "--dataset-path", "x"}, "--tokenizer"},
           {{"--backend", "openai-chat"}, "--tokenizer"},
           {{"--random-range-ratio", "1"}, "--random-range-ratio"},
           {{"--request-rate", "0"}, "--request-rate"},
           {{"--request-rate", "1,,2"}, "--request-rate"},
           {{"--request-rate", "1,2", "--max-concurrency", "1,2"}, "a sweep is over one"},
           {{"--max-concurrency", "1.5"}, "--max-concurrency"},
           {{"--burstiness", "nan"}, "--burstiness"},
           {{"--goodput", "itl:3"}, "ttft, tpot and e2el"},
           {{"--goodput", "ttft"}, "--goodput must be KEY:VALUE"},
           {{"--goodput", "ttft:-1"}, "--goodput ttft must be a number"},
           {{"--percentile-metrics", "ttft,p99"}, "got p99"},
           {{"--metric-percentiles", "101"}, "--metric-percentiles"},
           {{"--header", "nothing"}, "--header must be KEY=VALUE"},
           {{"--extra-body", "[1]"}, "--extra-body"},
           {{"--self-timed"}, "timed_trace"},
           {{"--dataset-name", "timed_trace", "--dataset-path", "x", "--request-rate", "2"}, "--no-self-timed"},
           {{"--ramp-up-strategy", "linear"}, "--ramp-up-start-rps"},
           {{"--ramp-up-start-rps", "2"}, "--ramp-up-strategy"},
           {{"--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2", "--request-rate", "2"},
            "exclude"},
           {{"--requestrate", "2"}, "did you mean --request-rate?"},
           {{"stray"}, "unexpected argument stray"}}) {
    const Arguments given = arguments;
    EXPECT_THAT(user_error([&] { parse(given); }), HasSubstr(reason)) << ::testing::PrintToString(given);
  }
}

TEST(BenchSettings, BenchAloneAsksForItsHelp) {
  for (const Arguments& arguments : std::vector<Arguments>{
           {"bench"}, {"bench", "--help"}, {"bench", "serve", "--help"}, {"help", "bench"}, {"help", "bench", "serve"}}) {
    const Invocation help = parse_command_line(arguments, no_variables);
    EXPECT_EQ(help.command, "help") << ::testing::PrintToString(arguments);
    EXPECT_EQ(help.about, "bench serve") << ::testing::PrintToString(arguments);
  }
  EXPECT_THAT(help_text("bench serve"), HasSubstr("--random-input-len N"));
  EXPECT_THAT(user_error([] {
                parse_command_line({"bench", "latency"}, no_variables);
              }),
              HasSubstr("unknown command bench latency"));
}

}  // namespace
}  // namespace weft

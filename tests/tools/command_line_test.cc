#include "tools/command_line.h"

#include <gmock/gmock.h>

#include "base/check.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

const char* no_variables(const char*) { return nullptr; }
Invocation parse(const Arguments& arguments) { return parse_command_line(arguments, no_variables); }

std::string refusal(const Arguments& arguments) {
  try {
    parse(arguments);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(CommandLine, ReadsAnEval) {
  const Invocation eval = parse({"eval", "models/llama", "--prompts", "in.json", "--out=out.safetensors", "-tp", "4", "-dcp=2",
                                 "--max_model_len", "32k", "--dtype", "float32", "--dcp-exchange=keys"});
  EXPECT_EQ(eval.command, "eval");
  EXPECT_EQ(eval.engine.model_dir, "models/llama");
  EXPECT_EQ(eval["prompts"], "in.json");
  EXPECT_EQ(eval["out"], "out.safetensors");
  EXPECT_EQ(eval.engine.tensor_parallel_size, 4);
  EXPECT_EQ(eval.engine.decode_context_parallel_size, 2);
  EXPECT_EQ(eval.engine.max_model_len, 32'000);
  EXPECT_EQ(eval.engine.dtype, ComputeDType::f32);
  EXPECT_EQ(eval.engine.dcp_exchange, DcpExchange::keys);
}

TEST(CommandLine, FlagsMayComeBeforeTheModel) {
  const Invocation inspect = parse({"inspect", "-tp", "2", "--json", "models/llama"});
  EXPECT_EQ(inspect.engine.model_dir, "models/llama");
  EXPECT_EQ(inspect.engine.tensor_parallel_size, 2);
  EXPECT_TRUE(inspect.has("json"));
}

TEST(CommandLine, TheLastOfAFlagGivenTwiceWins) {
  const Invocation eval =
      parse({"generate", "m", "--prompt-ids", "1", "--prompt-ids=2", "-tp", "8", "--tensor-parallel-size", "2"});
  EXPECT_EQ(eval["prompt-ids"], "2");
  EXPECT_EQ(eval.engine.tensor_parallel_size, 2);
}

TEST(CommandLine, VariablesCount) {
  const Invocation inspect = parse_command_line(
      {"inspect", "m"}, [](const char* name) { return std::string_view(name) == "WEFT_TENSOR_PARALLEL_SIZE" ? "4" : nullptr; });
  EXPECT_EQ(inspect.engine.tensor_parallel_size, 4);
}

TEST(CommandLine, SwitchesTakeNoValue) {
  const Invocation inspect =
      parse({"inspect", "--no-enable-prefix-caching", "--batch-invariant", "m", "--memory-per-rank", "64G"});
  EXPECT_EQ(inspect.engine.model_dir, "m");
  EXPECT_FALSE(inspect.engine.enable_prefix_caching);
  EXPECT_TRUE(inspect.engine.batch_invariant);
  EXPECT_EQ(inspect.engine.memory_per_rank, int64_t{64} << 30);
  EXPECT_EQ(refusal({"inspect", "m", "--no-batch-invarient"}),
            "weft inspect: unknown flag --no-batch-invarient; did you mean --no-batch-invariant?");
}

TEST(CommandLine, AMisspeltVariableIsRefusedWhereFlagsCount) {
  const auto with = [](const char* command) { return parse_command_line({command, "m"}, no_variables, {"WEFT_BLOCKSIZE"}); };
  EXPECT_THROW(with("inspect"), UserError);
  EXPECT_NO_THROW(parse_command_line({"version"}, no_variables, {"WEFT_BLOCKSIZE"}));
}

TEST(CommandLine, HelpWhereverItIsAskedFor) {
  for (const Arguments& arguments : {Arguments{}, Arguments{"--help"}, Arguments{"-h"}, Arguments{"help"}}) {
    EXPECT_EQ(parse(arguments).command, "help");
    EXPECT_EQ(parse(arguments).about, "");
  }
  for (const Arguments& arguments :
       {Arguments{"eval", "--help"}, Arguments{"eval", "m", "-tp", "x", "-h"}, Arguments{"help", "eval"}}) {
    EXPECT_EQ(parse(arguments).command, "help");
    EXPECT_EQ(parse(arguments).about, "eval");
  }
  EXPECT_EQ(parse({"--version"}).command, "version");
  EXPECT_TRUE(parse({"flags", "--markdown"}).has("markdown"));
}

TEST(CommandLine, UnknownWordsComeWithASuggestion) {
  EXPECT_THAT(refusal({"evla"}), HasSubstr("unknown command evla: did you mean eval?"));
  EXPECT_THAT(refusal({"replace", "m"}),
              HasSubstr("one of generate, eval, serve, bench serve, inspect, replay, flags, version, help"));
  EXPECT_THAT(refusal({"help", "evla"}), HasSubstr("did you mean eval?"));
  EXPECT_EQ(refusal({"inspect", "m", "--max-modle-len", "32k"}),
            "weft inspect: unknown flag --max-modle-len; did you mean --max-model-len?");
  EXPECT_EQ(refusal({"inspect", "m", "--tp", "2"}), "weft inspect: unknown flag --tp; did you mean -tp?");
  EXPECT_EQ(refusal({"eval", "m", "--prompt=x"}), "weft eval: unknown flag --prompt; did you mean --prompts?");
  EXPECT_EQ(refusal({"inspect", "m", "--host", "::"}), "weft inspect: unknown flag --host");
  EXPECT_EQ(refusal({"version", "-tp", "2"}), "weft version: unknown flag -tp");
  EXPECT_EQ(refusal({"inspect", "m", "n"}), "weft inspect: unexpected argument n");
}

TEST(CommandLine, WhatIsMissingIsNamed) {
  EXPECT_EQ(refusal({"eval", "m", "--out", "o"}), "weft eval needs --prompts IN.json");
  EXPECT_EQ(refusal({"generate", "m"}), "weft generate needs --prompt-ids 5,6,7");
  EXPECT_EQ(refusal({"inspect", "--json"}), "weft inspect needs a MODEL: a folder with config.json");
  EXPECT_EQ(refusal({"inspect", "m", "-tp"}), "-tp needs a value: 1 to 1024");
  EXPECT_THAT(refusal({"eval", "m", "--out"}), HasSubstr("--out"));
}

TEST(CommandLine, BadValuesAreRefusedBeforeAnythingRuns) {
  EXPECT_EQ(refusal({"inspect", "m", "-tp", "-4"}), "--tensor-parallel-size must be a whole number, 1 to 1024: got \"-4\"");
  EXPECT_THAT(refusal({"inspect", "m", "--kv-cache-dtype", "fp8_e5m2"}), HasSubstr("--kv-cache-dtype fp8_e5m2 is not"));
}

TEST(CommandLine, EveryCommandHasItsHelp) {
  EXPECT_THAT(help_text(""), HasSubstr("weft eval MODEL [flags]"));
  for (const char* command : {"generate", "eval", "inspect", "flags", "version", "help"})
    EXPECT_THAT(help_text(command), HasSubstr(std::string("usage: weft ") + command));
  EXPECT_THAT(help_text("eval"), HasSubstr("--prompts IN.json"));
  EXPECT_THAT(help_text("eval"), HasSubstr("--decode-context-parallel-size"));
}

}  // namespace
}  // namespace weft

// The program as its users run it: exit status, standard output, standard error and files.

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "support/golden_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

const fs::path kGoldens = WEFT_SOURCE_DIR "/tests/goldens";

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}
void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

struct Outcome {
  int status = -1;
  std::string out, err;
};

class WeftBinary : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("weft_binary_test." + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  Outcome run(const std::string& arguments) const {
    const std::string out = dir_ / "stdout", err = dir_ / "stderr";
    const int status = std::system((WEFT_BINARY " " + arguments + " >" + out + " 2>" + err).c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
  }
  /// The values after "generated " on the last line.
  static std::string generated(const Outcome& outcome) {
    const size_t at = outcome.out.rfind("generated ");
    return at == std::string::npos ? "none in: " + outcome.out + outcome.err : outcome.out.substr(at);
  }
  /// A folder with a config.json alone.
  fs::path config_only(const std::string& name, const std::string& text) const {
    fs::create_directories(dir_ / name);
    write(dir_ / name / "config.json", text);
    return dir_ / name;
  }

  fs::path dir_;
};

TEST_F(WeftBinary, HelpAndVersionGoToStandardOutput) {
  for (const char* arguments : {"", "help", "--help", "help eval", "eval --help", "flags", "version", "--version"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0) << arguments;
    EXPECT_THAT(outcome.err, IsEmpty()) << arguments;
    EXPECT_THAT(outcome.out, EndsWith("\n")) << arguments;
  }
  EXPECT_THAT(run("version").out, ::testing::MatchesRegex("weft [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(WeftBinary, WhatCannotBeDoneEndsInOneLineAndStatusTwo) {
  const std::string model = kGoldens / "llama_tied";
  write(dir_ / "hostile.json", "{\"prompts\":" + std::string(10000, '['));
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  write(dir_ / "foreign.json", R"({"prompts":[{"name":"p","input_ids":[1,2147483647]}]})");
  write(dir_ / "good.json", R"({"prompts":[{"name":"p","input_ids":[1,2]}]})");
  const std::string out = " --out " + (dir_ / "out.safetensors").string();
  const auto prompts = [&](const char* name) { return " --prompts " + (dir_ / name).string(); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"bogus", "unknown command bogus"},
      {"inspect", "needs a MODEL"},
      {"inspect " + model + " --bogus 1", "unknown flag --bogus"},
      {"inspect " + model + " -tp 0", "--tensor-parallel-size must be"},
      {"inspect " + model + " -tp 3", "--tensor-parallel-size must divide"},
      {"inspect " + model + " -tp 4 -dcp 3", "--decode-context-parallel-size must divide"},
      {"inspect " + model + " --block-size 6 --cp-kv-cache-interleave-size 4", "--block-size must be a multiple"},
      {"inspect " + model + " --num-layers 99", "--num-layers must be 1 to 3, or all: got 99"},
      {"inspect " + model + " --memory-per-rank much", "--memory-per-rank"},
      {"inspect " + model + " --memory-per-rank 1k", "no room for KV"},
      {"inspect " + model + " --memory-per-rank 1G --kv-cache-memory-bytes 1M",
       "--memory-per-rank and --kv-cache-memory-bytes"},
      {"inspect " + (dir_ / "nowhere").string(), "no such model folder: " + (dir_ / "nowhere").string()},
      {"generate " + model + " --prompt-ids 5,x", "--prompt-ids"},
      {"generate " + model + " --prompt-ids 5 --max-tokens 0", "--max-tokens"},
      {"generate " + model + " --prompt-ids 2000000000", "vocabulary"},
      {"generate " + model + " --prompt-ids 5 --max-tokens 99999",
       "the request is too long: 1 prompt tokens and max_tokens 99999"},
      {"generate " + dir_.string() + " --prompt-ids 5", "config.json"},
      {"eval " + model + prompts("nothing.json") + out, "nothing.json"},
      {"eval " + model + prompts("pipe") + out, "no such file"},
      {"eval " + model + prompts("good.json") + " --out ''", "--out must name a file"},
      {"eval " + model + prompts("hostile.json") + out, "nested too deep"},
      {"eval " + model + prompts("foreign.json") + out, "vocabulary"},
      {"eval " + model + prompts("good.json") + " --out " + (dir_ / "no/such/out.safetensors").string(), "--out"},
      {"eval " + model + prompts("good.json") + " --out " + dir_.string(), "--out"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
    // The log may say more before; the last line is the refusal.
    const size_t at = outcome.err.rfind("weft: ");
    ASSERT_NE(at, std::string::npos) << arguments << outcome.err;
    EXPECT_THAT(outcome.err.substr(at), AllOf(HasSubstr(reason), EndsWith("\n"))) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin() + static_cast<std::ptrdiff_t>(at), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(dir_ / "out.safetensors"));
}

TEST_F(WeftBinary, AMachineThatFailsIsStatusOne) {
  write(dir_ / "in.json", R"({"prompts":[{"name":"p","input_ids":[5,6]}]})");
  const Outcome outcome =
      run("eval " + (kGoldens / "llama_tied").string() + " --prompts " + (dir_ / "in.json").string() + " --out /dev/full");
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("/dev/full"));
}

TEST_F(WeftBinary, OutputThatNobodyGetsIsAFailure) {
  const std::string model = (kGoldens / "llama_tied").string();
  for (const std::string& arguments : {std::string("flags"), "inspect " + model, "generate " + model + " --prompt-ids 5"}) {
    const int status = std::system((WEFT_BINARY " " + arguments + " >/dev/full 2>" + (dir_ / "err").string()).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << arguments;
    EXPECT_THAT(read(dir_ / "err"), EndsWith("weft: cannot write to standard output\n")) << arguments;
  }
}

TEST_F(WeftBinary, InspectNeedsTheConfigAlone) {
  const fs::path model = config_only("copy", read(kGoldens / "deepseek_v2_lite/config.json"));
  const Outcome outcome = run("inspect " + model.string() + " -tp 4 -dcp 2 --dtype float32 --kv-cache-memory-bytes 1M --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto sizes = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(sizes["architecture"], "DeepseekV2ForCausalLM");
  EXPECT_THAT(sizes["legal_decode_context_parallel_sizes"], ElementsAre(1, 2, 4));
  EXPECT_THAT(sizes["legal_tensor_parallel_sizes"], ElementsAre(1, 2, 4));
  for (const char* key : {"weight_bytes_per_rank", "workspace_bytes_per_rank", "exchange_bytes_per_rank"})
    EXPECT_GT(sizes[key].get<int64_t>(), 0) << key;
  // Two layers of latent 128 and rope 32 in float32 are 1280 bytes a token, half of them on each of two ranks. A block of
  // 16 tokens of a rank takes 20480 bytes, and 1 MiB holds 51 of them: 51 * 32 tokens.
  EXPECT_EQ(sizes["kv_bytes_per_token_per_rank"], 640.0);
  EXPECT_EQ(sizes["capacity_blocks"], 51);
  EXPECT_EQ(sizes["capacity_tokens"], 51 * 32);
  EXPECT_EQ(sizes["max_model_len"], 1024);

  const Outcome text = run("inspect " + model.string() + " -tp 4 -dcp 2 --kv-cache-memory-bytes 1M");
  EXPECT_THAT(text.out, AllOf(HasSubstr("DeepseekV2ForCausalLM"), HasSubstr("dcp at this tp 1, 2, 4"), HasSubstr("room for")));
}

/// The shape of the 671B models.
constexpr const char* kLargeModel =
    R"({"architectures":["DeepseekV3ForCausalLM"],"model_type":"deepseek_v3","torch_dtype":"bfloat16",
  "hidden_act":"silu","hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,"num_hidden_layers":61,
  "num_attention_heads":128,"num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
  "qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"n_group":8,
  "topk_group":4,"first_k_dense_replace":3,"moe_layer_freq":1,"norm_topk_prob":true,"routed_scaling_factor":2.5,
  "scoring_func":"sigmoid","topk_method":"noaux_tc","vocab_size":129280,"max_position_embeddings":163840,"rope_theta":10000,
  "rms_norm_eps":1e-06,"tie_word_embeddings":false,"attention_bias":false,"num_nextn_predict_layers":1,
  "rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1,"mscale":1.0,
  "mscale_all_dim":1.0}})";

TEST_F(WeftBinary, CapacityOfA671bModelGrowsWithTheRanks) {
  const fs::path model = config_only("large", kLargeModel);
  const auto capacity = [&](int dcp) {
    const Outcome outcome =
        run("inspect " + model.string() + " -tp 8 -dcp " + std::to_string(dcp) + " --memory-per-rank 256g --json");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? nlohmann::json::parse(outcome.out)["capacity_tokens"].get<double>() : 0;
  };
  const double one = capacity(1);
  EXPECT_GT(one, 100'000);
  for (const int dcp : {2, 4, 8}) {
    const double woven = capacity(dcp);
    EXPECT_GE(woven, 0.98 * dcp * one) << "W " << dcp;
    EXPECT_LE(woven, 1.001 * dcp * one) << "W " << dcp;
  }
}

TEST_F(WeftBinary, EvalWritesTheGoldenNames) {
  const test::Golden golden = test::load_golden(kGoldens / "qwen3_moe");
  const test::GoldenPrompt& prompt = golden.prompts.at(2);
  ASSERT_EQ(prompt.name, "prompt33");
  const nlohmann::json in = {{"prompts",
                              {{{"name", "greedy"}, {"input_ids", prompt.input_ids}, {"generate", 4}},
                               {{"name", "forced"},
                                {"input_ids", prompt.input_ids},
                                {"forced_ids", {prompt.gen_ids[0], prompt.gen_ids[1], 7}},
                                {"all_logits", true},
                                {"record", {"hidden", "router"}}},
                               {{"name", "none"}, {"input_ids", {5}}}}}};
  write(dir_ / "in.json", in.dump());
  const Outcome outcome = run("eval " + golden.dir.string() + " --dtype float32 --prompts " + (dir_ / "in.json").string() +
                              " --out " + (dir_ / "out.safetensors").string());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("3 prompts, 67 tokens read and 7 generated in "));

  const test::StoredTensors out = test::read_stored_tensors(dir_ / "out.safetensors");
  const auto shape = [&](const std::string& name) { return out.contains(name) ? out.at(name).shape : std::vector<int64_t>{}; };
  const int64_t length = 33, vocab = golden.vocab;
  EXPECT_THAT(shape("greedy.last_logits"), ElementsAre(vocab));
  EXPECT_THAT(shape("greedy.gen_logits"), ElementsAre(4, vocab));
  EXPECT_THAT(shape("forced.gen_ids"), ElementsAre(3));
  EXPECT_THAT(shape("forced.logits"), ElementsAre(length, vocab));
  EXPECT_THAT(shape("none.last_logits"), ElementsAre(vocab));
  EXPECT_FALSE(out.contains("greedy.logits"));
  EXPECT_FALSE(out.contains("greedy.hidden0"));
  EXPECT_FALSE(out.contains("none.gen_ids"));
  for (size_t i = 0; i < prompt.hidden.size(); ++i)
    EXPECT_THAT(shape("forced.hidden" + std::to_string(i)),
                ElementsAre(length, static_cast<int64_t>(prompt.hidden[i].size()) / length));
  for (const auto& router : golden.prompts.at(3).router) {
    const std::string name = "forced.router.layer" + std::to_string(router.layer);
    EXPECT_THAT(shape(name + ".experts"), ElementsAre(length, router.top_k));
    EXPECT_THAT(shape(name + ".weights"), ElementsAre(length, router.top_k));
    EXPECT_EQ(out.at(name + ".experts").dtype, "I32");
  }
  EXPECT_EQ(out.at("greedy.gen_ids").dtype, "I32");
  EXPECT_EQ(out.at("greedy.last_logits").dtype, "F32");

  // The values: as the golden, and the forced run chose from the same rows until another token was fed.
  const std::vector<double> ids(prompt.gen_ids.begin(), prompt.gen_ids.begin() + 4);
  EXPECT_EQ(out.at("greedy.gen_ids").values, ids);
  EXPECT_EQ(out.at("forced.gen_ids").values, std::vector<double>(ids.begin(), ids.begin() + 3));
  for (int64_t i = 0; i < vocab; ++i)
    ASSERT_NEAR(out.at("greedy.last_logits").values[static_cast<size_t>(i)], prompt.last_logits[static_cast<size_t>(i)], 1e-3);
}

TEST_F(WeftBinary, GenerateShowsTokensAndSharesAndTwoRanksSayTheSame) {
  const std::string command =
      "generate " + (kGoldens / "deepseek_v2_lite").string() + " --prompt-ids 5,6,7 --max-tokens 4 --dtype float32 -tp 2 -dcp ";
  const Outcome one = run(command + "1"), two = run(command + "2");
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_EQ(generated(one), generated(two));
  EXPECT_THAT(generated(one), ::testing::MatchesRegex("generated [0-9]+,[0-9]+,[0-9]+,[0-9]+\n"));
  // One line per step: the token it chose, and what each rank holds after it: 3 to 6 tokens dealt over two ranks.
  std::vector<std::string> shares;
  static const std::regex line(R"(\n +[0-9]+ +([0-9]+) +([0-9]+))");
  for (auto it = std::sregex_iterator(two.out.begin(), two.out.end(), line); it != std::sregex_iterator(); ++it)
    shares.push_back((*it)[1].str() + " " + (*it)[2].str());
  EXPECT_THAT(shares, ElementsAre("2 1", "2 2", "3 2", "3 3"));
}

TEST_F(WeftBinary, GenerateAsJsonSaysTheSame) {
  const std::string command = "generate " + (kGoldens / "deepseek_v2_lite").string() +
                              " --prompt-ids 5,6,7 --max-tokens 4 --dtype float32 -tp 2 -dcp 2";
  const Outcome text = run(command), json = run(command + " --json");
  ASSERT_EQ(json.status, 0) << json.err;
  const auto result = nlohmann::json::parse(json.out);
  EXPECT_EQ(result["prompt_tokens"], 3);
  EXPECT_THAT(result["kv_tokens_per_rank"], ElementsAre(3, 3));
  std::string ids = "generated ";
  for (const auto& id : result["token_ids"]) ids += (ids.back() == ' ' ? "" : ",") + std::to_string(id.get<int>());
  EXPECT_EQ(ids + "\n", generated(text));
}

TEST_F(WeftBinary, AForeignTokenIsRefusedBeforeWeightsAreRead) {
  const fs::path model = config_only("unread", read(kGoldens / "llama_tied/config.json"));  // it has no weights
  const Outcome outcome = run("generate " + model.string() + " --prompt-ids 2000000000");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the prompt holds token 2000000000: the vocabulary has ids 0 to"));
}

TEST_F(WeftBinary, AMisspeltVariableIsNoSilentNothing) {
  ASSERT_EQ(::setenv("WEFT_BLOCKSIZE", "32", 1), 0);
  const Outcome outcome = run("inspect " + (kGoldens / "llama_tied").string());
  ::unsetenv("WEFT_BLOCKSIZE");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean WEFT_BLOCK_SIZE?"));
}

TEST_F(WeftBinary, DummyWeightsNeedTheConfigAloneAndFollowTheSeed) {
  const fs::path model = config_only("dummy", read(kGoldens / "llama_bias/config.json"));
  const std::string command =
      "generate " + model.string() + " --load-format dummy --num-layers 1 --prompt-ids 5,6 --max-tokens 8 --seed ";
  const Outcome first = run(command + "1"), again = run(command + "1"), other = run(command + "2");
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(first.out, again.out);
  EXPECT_NE(generated(first), generated(other));
}

}  // namespace
}  // namespace weft

#include "tools/flags.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/check.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Flag& flag(const char* name) {
  const Flag* found = find_flag(name);
  if (found == nullptr) throw std::invalid_argument(name);
  return *found;
}

/// The message of the refusal of `body`, or "" if there is none.
template <typename Body>
std::string refusal(Body body) {
  try {
    body();
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}
std::string refusal_of(const char* name, const char* text) {
  return refusal([&] { flag(name).parse(text, "--" + flag(name).name); });
}

EngineConfig config_of(std::vector<std::pair<const char*, const char*>> given,
                       std::map<std::string, std::string> variables = {}) {
  std::vector<std::pair<const Flag*, std::string>> flags;
  for (const auto& [name, text] : given) flags.emplace_back(&flag(name), text);
  return engine_config(flags,
                       [&](const char* name) { return variables.contains(name) ? variables.at(name).c_str() : nullptr; });
}

int64_t size_of_text(const char* text) {
  int64_t value = -1;
  return parse_size(text, value) ? value : -1;
}

TEST(Flags, NamesAreUniqueAndEveryEntryIsWhole) {
  std::set<std::string> names, variables;
  for (const Flag& f : engine_flags()) {
    EXPECT_TRUE(names.insert(f.name).second) << f.name;
    for (const std::string& alias : f.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
    EXPECT_TRUE(f.short_name.empty() || names.insert(f.short_name).second) << f.short_name;
    EXPECT_TRUE(variables.insert(f.environment()).second) << f.environment();
    EXPECT_FALSE(f.help.empty()) << f.name;
    EXPECT_FALSE(f.group.empty()) << f.name;
    EXPECT_EQ(f.choices.empty(), f.kind != Flag::Kind::choice) << f.name;
  }
}

TEST(Flags, TheNamesThatUsersKnowAreThere) {
  for (const char* name : {"tensor-parallel-size",
                           "tp",
                           "decode-context-parallel-size",
                           "dcp",
                           "cp-kv-cache-interleave-size",
                           "dcp-kv-cache-interleave-size",
                           "block-size",
                           "kv-cache-dtype",
                           "dtype",
                           "max-model-len",
                           "max-num-seqs",
                           "max-num-batched-tokens",
                           "kv-cache-memory-bytes",
                           "num-gpu-blocks-override",
                           "num-kv-blocks",
                           "load-format",
                           "num-layers",
                           "device",
                           "threads",
                           "seed",
                           "dcp-exchange",
                           "enable-prefix-caching",
                           "memory-per-rank"})
    EXPECT_NE(find_flag(name), nullptr) << name;
  EXPECT_EQ(find_flag("tensor"), nullptr);
  EXPECT_EQ(find_flag(""), nullptr);
}

TEST(Flags, EveryDefaultIsAcceptedAndChangesNothing) {
  for (const Flag& f : engine_flags()) {
    EngineConfig config;
    f.set(config, f.parse(f.default_text(), f.name));
    EXPECT_EQ(f.get(config), f.get(EngineConfig{})) << f.name;
  }
}

TEST(Flags, EveryFlagSetsItsOwnFieldAndNoOther) {
  for (const Flag& f : engine_flags()) {
    // A switch that is on goes off, a choice takes its second word, a number one more.
    const int64_t value = f.kind == Flag::Kind::choice    ? 1
                          : f.kind == Flag::Kind::boolean ? 1 - f.get(EngineConfig{})
                                                          : f.get(EngineConfig{}) + 1;
    EngineConfig config;
    f.set(config, value);
    for (const Flag& other : engine_flags())
      EXPECT_EQ(other.get(config), other.name == f.name ? value : other.get(EngineConfig{})) << f.name << ", " << other.name;
  }
}

TEST(Flags, DefaultsOfTheContract) {
  const std::map<std::string, std::string> wanted = {{"tensor-parallel-size", "1"},
                                                     {"decode-context-parallel-size", "1"},
                                                     {"cp-kv-cache-interleave-size", "1"},
                                                     {"block-size", "16"},
                                                     {"kv-cache-dtype", "auto"},
                                                     {"dtype", "auto"},
                                                     {"max-model-len", "auto"},
                                                     {"max-num-seqs", "256"},
                                                     {"max-num-batched-tokens", "2048"},
                                                     {"load-format", "auto"},
                                                     {"num-layers", "all"},
                                                     {"enable-prefix-caching", "true"},
                                                     {"batch-invariant", "false"},
                                                     {"tpot-target-ms", "none"},
                                                     {"max-queued-requests", "1024"},
                                                     {"memory-per-rank", "none"},
                                                     {"kv-cache-scale", "auto"},
                                                     {"dcp-exchange", "auto"}};
  for (const auto& [name, text] : wanted) EXPECT_EQ(flag(name.c_str()).default_text(), text) << name;
}

TEST(Flags, BoundsAreAcceptedAndTheirNeighboursRefused) {
  for (const Flag& f : engine_flags()) {
    if (f.kind != Flag::Kind::integer && f.kind != Flag::Kind::size) continue;
    EXPECT_EQ(f.parse(std::to_string(f.min), f.name), f.min);
    EXPECT_EQ(f.parse(std::to_string(f.max), f.name), f.max);
    EXPECT_THROW(f.parse(std::to_string(f.min - 1), f.name), UserError) << f.name;
    EXPECT_THROW(f.parse("9223372036854775808", f.name), UserError) << f.name;
    for (const char* text :
         {"", " ", "1 ", " 1", "+1", "0x10", "1e3", "one", "1,5", "1.5", "--1", "١", "nan", "-", "k", ".k", "1.k"})
      EXPECT_THROW(f.parse(text, f.name), UserError) << f.name << " took " << text;
  }
}

TEST(Flags, RefusalsNameFlagValueAndRange) {
  EXPECT_EQ(refusal_of("tp", "0"), "--tensor-parallel-size must be a whole number, 1 to 1024: got \"0\"");
  EXPECT_EQ(refusal_of("tp", "four"), "--tensor-parallel-size must be a whole number, 1 to 1024: got \"four\"");
  EXPECT_EQ(refusal_of("max-model-len", "-1"),
            "--max-model-len must be a whole number, 1 to 2147483647, also as 32k or 1M, or auto: got \"-1\"");
  EXPECT_EQ(refusal_of("seed", "x"), "--seed must be a whole number, 0 or more: got \"x\"");
  EXPECT_EQ(refusal_of("dcp-exchange", "both"), "--dcp-exchange must be auto, queries or keys: got \"both\"");
  EXPECT_EQ(refusal_of("dcp-exchange", "QUERIES"), "--dcp-exchange must be auto, queries or keys: got \"QUERIES\"");
  EXPECT_THAT(refusal_of("dtype", std::string(1000, 'x').c_str()), HasSubstr("...\""));
}

TEST(Flags, WordsThatUsersKnowAreRefusedByNameAndWithAReason) {
  EXPECT_EQ(refusal_of("kv-cache-dtype", "fp8_e5m2"),
            "--kv-cache-dtype fp8_e5m2 is not supported: two bits of mantissa are too coarse for keys; use fp8, which is e4m3");
  EXPECT_EQ(refusal_of("device", "cuda"), "--device cuda is not in this build; use auto or cpu");
}

TEST(Flags, DecimalsHaveUpToNineDigitsBehindThePoint) {
  const Flag& scale = flag("kv-cache-scale");
  EngineConfig config;
  for (const auto& [text, value] : std::map<std::string, double>{
           {"1", 1}, {"0.25", 0.25}, {"4.0", 4}, {"0.000000001", 1e-9}, {"1000000", 1e6}, {"auto", 0}}) {
    scale.set(config, scale.parse(text, "--kv-cache-scale"));
    EXPECT_DOUBLE_EQ(config.kv_cache_scale, value) << text;
  }
  for (const char* text : {"", ".", "1.", ".5", "-1", "0", "0.0", "1e3", "0.0000000001", "1000000.1", "1.5k", "nan", "1,5",
                           " 1", "9223372036854775807"})
    EXPECT_THROW(scale.parse(text, "x"), UserError) << text;
  EXPECT_EQ(refusal_of("tpot-target-ms", "fast"), "--tpot-target-ms must be a number, 0.001 to 3600000, or none: got \"fast\"");
}

TEST(Flags, SwitchesAreTrueOrFalse) {
  EngineConfig config;
  const Flag& caching = flag("enable-prefix-caching");
  for (const auto& [text, value] : std::map<std::string, bool>{{"true", true}, {"false", false}, {"1", true}, {"0", false}}) {
    caching.set(config, caching.parse(text, "x"));
    EXPECT_EQ(config.enable_prefix_caching, value) << text;
  }
  EXPECT_EQ(refusal_of("batch-invariant", "yes"), "--batch-invariant must be true or false: got \"yes\"");
}

TEST(Flags, TheTwoNamesOfE4m3AreOne) {
  EXPECT_EQ(config_of({{"kv-cache-dtype", "fp8_e4m3"}}).kv_cache_dtype, KvCacheDType::fp8);
  EXPECT_EQ(config_of({{"kv-cache-dtype", "fp8"}}).kv_cache_dtype, KvCacheDType::fp8);
}

TEST(Variables, ThatLookMuchLikeAFlagsAreRefused) {
  EXPECT_EQ(refusal([] { refuse_misspelt_variables({"WEFT_BLOCKSIZE"}); }),
            "unknown variable WEFT_BLOCKSIZE: did you mean WEFT_BLOCK_SIZE?");
  EXPECT_EQ(refusal([] { refuse_misspelt_variables({"WEFT_MAX_MODLE_LEN"}); }),
            "unknown variable WEFT_MAX_MODLE_LEN: did you mean WEFT_MAX_MODEL_LEN?");
  EXPECT_EQ(refusal([] {
              refuse_misspelt_variables({"WEFT_SEED", "WEFT_BLOCK_SIZE", "WEFT_TALLY", "WEFT_STAMPS", "WEFT_"});
            }),
            "");
}

TEST(ParseSize, SuffixesAreOfThousandsInLowerCaseAndOf1024InUpperCase) {
  EXPECT_EQ(size_of_text("0"), 0);
  EXPECT_EQ(size_of_text("4096"), 4096);
  EXPECT_EQ(size_of_text("32k"), 32'000);
  EXPECT_EQ(size_of_text("32K"), 32'768);
  EXPECT_EQ(size_of_text("1m"), 1'000'000);
  EXPECT_EQ(size_of_text("1M"), 1'048'576);
  EXPECT_EQ(size_of_text("2g"), 2'000'000'000);
  EXPECT_EQ(size_of_text("2G"), 2'147'483'648);
  EXPECT_EQ(size_of_text("1.5k"), 1'500);
  EXPECT_EQ(size_of_text("0.25m"), 250'000);
  EXPECT_EQ(size_of_text("25.6k"), 25'600);
  EXPECT_EQ(size_of_text("1.500000k"), 1'500);
}

TEST(ParseSize, RefusesWhatIsNoWholeNumber) {
  for (const char* text : {"", "k", "K", ".5k", "1.k", "1.5", "1.5K", "1.0005k", "-1k", "-0", "1kk", "1 k", "k1", "1e3",
                           "1.5.5k", "9223372036854775808", "9223372036854775807k", "8589934592G", "9223372036g.9"})
    EXPECT_EQ(size_of_text(text), -1) << text;
  EXPECT_EQ(size_of_text("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(size_of_text("9223372036854775.807k"), INT64_MAX);
  EXPECT_EQ(size_of_text("9223372036854775.808k"), -1);
}

TEST(EngineConfig, ComesFromFlagsThenVariablesThenDefaults) {
  const EngineConfig config =
      config_of({{"tp", "8"}, {"dcp", "2"}, {"dcp", "4"}, {"max-model-len", "1M"}},
                {{"WEFT_TENSOR_PARALLEL_SIZE", "2"}, {"WEFT_BLOCK_SIZE", "32"}, {"WEFT_DTYPE", "float32"}});
  EXPECT_EQ(config.tensor_parallel_size, 8) << "the command line wins";
  EXPECT_EQ(config.decode_context_parallel_size, 4) << "the last one wins";
  EXPECT_EQ(config.max_model_len, 1 << 20);
  EXPECT_EQ(config.block_size, 32);
  EXPECT_EQ(config.dtype, ComputeDType::f32);
  EXPECT_EQ(config.max_num_seqs, 256);
}

TEST(EngineConfig, ABadVariableIsRefusedByItsOwnName) {
  EXPECT_EQ(refusal([] {
              config_of({}, {{"WEFT_BLOCK_SIZE", "big"}});
            }),
            "WEFT_BLOCK_SIZE must be a whole number, 1 to 1048576: got \"big\"");
  EXPECT_EQ(refusal([] { config_of({{"block-size", "16"}}, {{"WEFT_BLOCK_SIZE", "big"}}); }), "") << "not asked";
}

TEST(EngineConfig, NothingButItsFlagChangesTheInterleaveSize) {
  for (const Flag& f : engine_flags()) {
    if (f.name == "cp-kv-cache-interleave-size") continue;
    EngineConfig config;
    f.set(config, f.kind == Flag::Kind::choice || f.kind == Flag::Kind::boolean ? 1 : f.max);
    EXPECT_EQ(config.cp_kv_cache_interleave_size, 1) << f.name;
  }
}

TEST(PlainArguments, KnowTheSpellingsThatUsersBring) {
  EXPECT_THAT(plain_arguments({"-tp", "4", "-dcp=2"}),
              ElementsAre("--tensor-parallel-size=4", "--decode-context-parallel-size=2"));
  EXPECT_THAT(plain_arguments({"--tensor_parallel_size", "4", "--max_model_len=32k"}),
              ElementsAre("--tensor-parallel-size=4", "--max-model-len=32k"));
  EXPECT_THAT(plain_arguments({"--num-kv-blocks", "7", "--dcp-kv-cache-interleave-size=2"}),
              ElementsAre("--num-gpu-blocks-override=7", "--cp-kv-cache-interleave-size=2"));
  EXPECT_THAT(plain_arguments({"-tp", "-1"}), ElementsAre("--tensor-parallel-size=-1"));
  EXPECT_THAT(plain_arguments({"--seed="}), ElementsAre("--seed="));
  EXPECT_THAT(plain_arguments({"--enable-prefix-caching", "model", "--no-enable_prefix_caching", "--batch-invariant=true"}),
              ElementsAre("--enable-prefix-caching=true", "model", "--enable-prefix-caching=false", "--batch-invariant=true"));
  EXPECT_EQ(refusal([] { plain_arguments({"--no-batch-invariant=1"}); }), "--no-batch-invariant takes no value");
  EXPECT_THAT(plain_arguments({"--no-seed", "1"}), ElementsAre("--no-seed", "1")) << "not a switch";
}

TEST(PlainArguments, LeaveTheRestAlone) {
  EXPECT_THAT(plain_arguments({"model", "--out", "a_b", "--prompt_ids=1,2", "-x", "--bogus_flag"}),
              ElementsAre("model", "--out", "a_b", "--prompt-ids=1,2", "-x", "--bogus-flag"));
  EXPECT_THAT(plain_arguments({"-tensor-parallel-size", "4"}), ElementsAre("-tensor-parallel-size", "4"));
  EXPECT_THAT(plain_arguments({"--tp", "4"}), ElementsAre("--tp", "4")) << "one dash, as the help says";
  EXPECT_THAT(plain_arguments({"--", "-tp", "4"}), ElementsAre("--", "-tp", "4"));
}

TEST(PlainArguments, AFlagWithoutAValueIsRefused) {
  EXPECT_EQ(refusal([] { plain_arguments({"model", "-tp"}); }), "-tp needs a value: 1 to 1024");
}

TEST(Closest, FindsTypingErrorsAndNothingElse) {
  const std::vector<std::string> words = {"--max-model-len", "--max-num-seqs", "--dtype", "-tp"};
  EXPECT_EQ(closest("--max-modle-len", words), "--max-model-len");
  EXPECT_EQ(closest("--maxnumseqs", words), "--max-num-seqs");
  EXPECT_EQ(closest("--dytpe", words), "--dtype");
  EXPECT_EQ(closest("-pt", words), "-tp");
  EXPECT_EQ(closest("--completely-different", words), "");
  EXPECT_EQ(closest("", words), "");
}

TEST(FlagsHelp, NamesEverything) {
  const std::string help = flags_help();
  const std::string unwrapped = std::regex_replace(help, std::regex("\\s+"), " ");
  for (const Flag& f : engine_flags()) {
    for (const std::string& text : {unwrapped, flags_markdown()}) {
      EXPECT_THAT(text, HasSubstr("--" + f.name));
      EXPECT_THAT(text, HasSubstr(f.environment()));
      EXPECT_THAT(text, HasSubstr(f.accepted()));
      EXPECT_THAT(text, HasSubstr(f.help));
    }
  }
  EXPECT_THAT(help, HasSubstr("-tp, --tensor-parallel-size"));
  std::stringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST(FlagsHelp, TheDocumentIsTheTable) {
  std::stringstream file;
  file << std::ifstream(WEFT_SOURCE_DIR "/docs/flags.md").rdbuf();
  EXPECT_EQ(file.str(), flags_markdown()) << "run: build/release/weft flags --markdown > docs/flags.md";
}

}  // namespace
}  // namespace weft

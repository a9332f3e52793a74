#include "tools/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>

#include "base/check.h"

namespace weft {
namespace {

constexpr int64_t kMaxRanks = 1024;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();  // positions and block ids in a plan
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr size_t kHelpWidth = 100;
constexpr int64_t kBillion = 1'000'000'000;

template <auto Member>
Flag bound(Flag flag) {
  flag.set = [](EngineConfig& config, int64_t value) {
    config.*Member = static_cast<std::remove_reference_t<decltype(config.*Member)>>(value);
  };
  flag.get = [](const EngineConfig& config) { return static_cast<int64_t>(config.*Member); };
  return flag;
}

template <auto Member>
Flag bound_decimal(Flag flag) {
  flag.kind = Flag::Kind::decimal;
  flag.set = [](EngineConfig& config, int64_t value) { config.*Member = static_cast<double>(value) / kBillion; };
  flag.get = [](const EngineConfig& config) { return int64_t{std::llround(config.*Member * kBillion)}; };
  return flag;
}

template <typename Enum>
Flag::Choice choice(std::string word, Enum value) {
  return {.word = std::move(word), .value = static_cast<int64_t>(value)};
}
Flag::Choice refused(std::string word, std::string why) { return {.word = std::move(word), .refusal = std::move(why)}; }

std::vector<Flag> make_flags() {
  using Kind = Flag::Kind;
  using C = EngineConfig;
  const std::string ranks = "Ranks", memory = "Memory and lengths", requests = "Requests", model = "Model", machine = "Machine";
  return {
      bound<&C::tensor_parallel_size>({.name = "tensor-parallel-size",
                                       .short_name = "tp",
                                       .aliases = {"tp-size"},
                                       .group = ranks,
                                       .help = "Ranks that share the model's heads and weights.",
                                       .min = 1,
                                       .max = kMaxRanks}),
      bound<&C::decode_context_parallel_size>(
          {.name = "decode-context-parallel-size",
           .short_name = "dcp",
           .aliases = {"dcp-size"},
           .group = ranks,
           .help = "Ranks, out of those, that the KV cache of a sequence is woven over. Divides the copies of a KV head.",
           .min = 1,
           .max = kMaxRanks}),
      bound<&C::cp_kv_cache_interleave_size>({.name = "cp-kv-cache-interleave-size",
                                              .aliases = {"dcp-kv-cache-interleave-size"},
                                              .group = ranks,
                                              .help = "Consecutive tokens that go to one rank before the next rank's turn.",
                                              .min = 1,
                                              .max = 1 << 20}),
      bound<&C::dcp_exchange>({.name = "dcp-exchange",
                               .group = ranks,
                               .help = "What crosses between the ranks to see cached keys; auto chooses by bytes.",
                               .kind = Kind::choice,
                               .choices = {choice("auto", DcpExchange::automatic), choice("queries", DcpExchange::queries),
                                           choice("keys", DcpExchange::keys)}}),
      bound<&C::block_size>({.name = "block-size",
                             .aliases = {"page-size"},
                             .group = memory,
                             .help = "Tokens of a KV block on one rank; a multiple of the interleave size.",
                             .min = 1,
                             .max = 1 << 20}),
      bound<&C::kv_cache_dtype>(
          {.name = "kv-cache-dtype",
           .group = memory,
           .help = "Element type of the KV cache; auto is that of the computation, fp8 is e4m3, fp8_ds_mla the 656-byte row of "
                   "latent attention with scales in it.",
           .kind = Kind::choice,
           .choices = {choice("auto", KvCacheDType::automatic), choice("bfloat16", KvCacheDType::bf16),
                       choice("bf16", KvCacheDType::bf16), choice("fp8", KvCacheDType::fp8),
                       choice("fp8_e4m3", KvCacheDType::fp8), choice("fp8_ds_mla", KvCacheDType::fp8_ds_mla),
                       refused("fp8_e5m2",
                               "not supported: two bits of mantissa are too coarse for keys; use fp8, which is e4m3"),
                       refused("fp8_inc", "for other devices; use fp8")}}),
      bound_decimal<&C::kv_cache_scale>({.name = "kv-cache-scale",
                                         .group = memory,
                                         .help = "fp8: what stored keys and values are multiplied by to get the real ones, in "
                                                 "every layer; auto is the checkpoint's, else 1.",
                                         .min = 1,
                                         .max = 1'000'000 * kBillion,
                                         .zero_word = "auto"}),
      bound<&C::max_model_len>(
          {.name = "max-model-len",
           .aliases = {"context-length"},
           .group = memory,
           .help = "Longest sequence, prompt and answer together; auto is the model's, or what fits if that is less.",
           .kind = Kind::size,
           .min = 1,
           .max = kMaxInt32,
           .zero_word = "auto"}),
      bound<&C::max_num_seqs>({.name = "max-num-seqs",
                               .aliases = {"max-running-requests"},
                               .group = memory,
                               .help = "Sequences in one step, at most.",
                               .min = 1,
                               .max = 1 << 20}),
      bound<&C::max_num_batched_tokens>({.name = "max-num-batched-tokens",
                                         .aliases = {"chunked-prefill-size"},
                                         .group = memory,
                                         .help = "Tokens in one step, at most: long prompts are cut into such chunks.",
                                         .kind = Kind::size,
                                         .min = 1,
                                         .max = 1 << 24}),
      bound<&C::memory_per_rank>({.name = "memory-per-rank",
                                  .group = memory,
                                  .help =
                                      "Budget of each rank for weights, workspaces, exchange buffers and KV together; none: KV "
                                      "as kv-cache-memory-bytes says.",
                                  .kind = Kind::size,
                                  .min = 1,
                                  .max = kMaxInt64,
                                  .zero_word = "none"}),
      bound<&C::kv_cache_memory_bytes>(
          {.name = "kv-cache-memory-bytes",
           .group = memory,
           .help = "KV memory of each rank; auto: 4 GiB or half of the free memory, shared by all ranks, at most "
                   "what max-num-seqs sequences can use.",
           .kind = Kind::size,
           .min = 1,
           .max = kMaxInt64,
           .zero_word = "auto"}),
      bound<&C::num_gpu_blocks_override>({.name = "num-gpu-blocks-override",
                                          .aliases = {"num-kv-blocks"},
                                          .group = memory,
                                          .help = "KV blocks, whatever the memory says.",
                                          .min = 1,
                                          .max = kMaxInt32,
                                          .zero_word = "auto"}),
      bound<&C::enable_prefix_caching>(
          {.name = "enable-prefix-caching",
           .group = requests,
           .help = "Compute a prefix that several requests share only once, while its KV is there.",
           .kind = Kind::boolean}),
      bound<&C::batch_invariant>(
          {.name = "batch-invariant",
           .group = requests,
           .help = "The same bits for a request whatever runs beside it and whatever was cached; slower.",
           .kind = Kind::boolean}),
      bound_decimal<&C::tpot_target_ms>(
          {.name = "tpot-target-ms",
           .group = requests,
           .help =
               "Milliseconds that a step with decoding sequences should take at most: prefill chunks beside them are sized so.",
           .min = kBillion / 1000,
           .max = 3'600'000 * kBillion,
           .zero_word = "none"}),
      bound<&C::max_queued_requests>({.name = "max-queued-requests",
                                      .aliases = {"max-num-queued-reqs"},
                                      .group = requests,
                                      .help = "Requests that may wait for their turn; one more is refused.",
                                      .min = 1,
                                      .max = 1 << 20}),
      bound<&C::max_queued_tokens>({.name = "max-queued-tokens",
                                    .aliases = {"max-num-queued-tokens"},
                                    .group = requests,
                                    .help = "Prompt tokens of those, at most; a request that waits alone may have more.",
                                    .kind = Kind::size,
                                    .min = 1,
                                    .max = kMaxInt64,
                                    .zero_word = "none"}),
      bound<&C::dtype>(
          {.name = "dtype",
           .group = model,
           .help = "Element type of weights and activations; auto is float32 for float32 checkpoints, else bfloat16.",
           .kind = Kind::choice,
           .choices = {choice("auto", ComputeDType::automatic), choice("bfloat16", ComputeDType::bf16),
                       choice("float32", ComputeDType::f32), choice("float", ComputeDType::f32),
                       refused("float16", "not computed in; use bfloat16 or float32, which read float16 checkpoints too"),
                       refused("half", "not computed in; use bfloat16 or float32, which read float16 checkpoints too")}}),
      bound<&C::load_format>({.name = "load-format",
                              .group = model,
                              .help = "Where weights come from; dummy makes seeded random ones from config.json alone.",
                              .kind = Kind::choice,
                              .choices = {choice("auto", LoadFormat::automatic), choice("safetensors", LoadFormat::safetensors),
                                          choice("dummy", LoadFormat::dummy)}}),
      bound<&C::num_layers>({.name = "num-layers",
                             .group = model,
                             .help = "Only the first layers of the model: for tests and measurements.",
                             .min = 1,
                             .max = 1 << 16,
                             .zero_word = "all"}),
      bound<&C::seed>({.name = "seed",
                       .group = model,
                       .help = "Of dummy weights, and of requests that name no seed.",
                       .min = 0,
                       .max = kMaxInt64}),
      bound<&C::device>({.name = "device",
                         .group = machine,
                         .help = "What the ranks compute on.",
                         .kind = Kind::choice,
                         .choices = {choice("auto", Device::automatic), choice("cpu", Device::cpu),
                                     refused("cuda", "not in this build; use auto or cpu")}}),
      bound<&C::threads>({.name = "threads",
                          .group = machine,
                          .help = "Threads of all ranks together; auto is one per core.",
                          .min = 1,
                          .max = 4096,
                          .zero_word = "auto"}),
  };
}

/// "a", "a or b", "a, b or c".
std::string alternatives(const std::vector<std::string>& words) {
  if (words.size() == 1) return words.front();
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) out += c >= ' ' && c != '\x7f' ? c : '?';
  return out + (text.size() > kShown ? "...\"" : "\"");
}

bool parse_integer(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Digits, or digits, a point and up to nine more, in billionths.
bool parse_decimal(std::string_view text, int64_t& value) {
  const size_t point = std::min(text.find('.'), text.size());
  int64_t whole = 0, fraction = 0, place = kBillion;
  if (point == 0 || text.front() == '-' || !parse_integer(text.substr(0, point), whole) || whole > kMaxInt64 / kBillion - 1)
    return false;
  if (point + 1 == text.size()) return false;
  for (const char digit : text.substr(std::min(point + 1, text.size()))) {
    if (digit < '0' || digit > '9' || place == 1) return false;
    place /= 10;
    fraction += place * (digit - '0');
  }
  value = whole * kBillion + fraction;
  return true;
}

/// Billionths as a user would write them: "0.25".
std::string decimal_text(int64_t value) {
  std::string out = fmt::format("{}.{:09}", value / kBillion, value % kBillion);
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out;
}

std::string dashes(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

/// Steps of inserting, deleting or replacing one character, or swapping two neighbours, that lead from a to b.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

/// `text` broken into lines of at most `width`, each after the first behind `indent` spaces.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = std::string_view(text).substr(at, end - at);
    if (column + word.size() >= width && column > indent) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    at = end + 1;
  }
  return out;
}

/// "-tp, --tensor-parallel-size", aliases last.
std::vector<std::string> spellings(const Flag& flag) {
  std::vector<std::string> out;
  if (!flag.short_name.empty()) out.push_back("-" + flag.short_name);
  out.push_back("--" + flag.name);
  for (const std::string& alias : flag.aliases) out.push_back("--" + alias);
  if (flag.kind == Flag::Kind::boolean) out.push_back("--no-" + flag.name);
  return out;
}

/// Calls body(group, flags of the group) in the order of the table.
template <typename Body>
void for_each_group(Body body) {
  const auto& flags = engine_flags();
  for (auto begin = flags.begin(); begin != flags.end();) {
    const auto end = std::find_if(begin, flags.end(), [&](const Flag& flag) { return flag.group != begin->group; });
    body(begin->group, std::vector<Flag>(begin, end));
    begin = end;
  }
}

}  // namespace

std::string Flag::environment() const {
  std::string out = "WEFT_";
  for (const char c : name) out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string Flag::accepted() const {
  if (kind == Kind::choice) {
    std::vector<std::string> words;
    for (const Choice& choice : choices)
      if (choice.refusal.empty()) words.push_back(choice.word);
    return alternatives(words);
  }
  if (kind == Kind::boolean) return "true or false";
  if (kind == Kind::decimal) {
    const std::string out = fmt::format("{} to {}", decimal_text(min), decimal_text(max));
    return zero_word.empty() ? out : out + ", or " + zero_word;
  }
  std::string out = max == kMaxInt64 ? fmt::format("{} or more", min) : fmt::format("{} to {}", min, max);
  if (kind == Kind::size) out += ", also as 32k or 1M";
  if (!zero_word.empty()) out += ", or " + zero_word;
  return out;
}

std::string Flag::text_in(const EngineConfig& config) const {
  const int64_t value = get(config);
  if (kind == Kind::choice) {
    const auto it = std::find_if(choices.begin(), choices.end(), [&](const Choice& c) { return c.value == value; });
    WEFT_CHECK(it != choices.end()) << "value of --" << name;
    return it->word;
  }
  if (kind == Kind::boolean) return value != 0 ? "true" : "false";
  if (value == 0 && !zero_word.empty()) return zero_word;
  return kind == Kind::decimal ? decimal_text(value) : std::to_string(value);
}

int64_t Flag::parse(std::string_view text, std::string_view spelling) const {
  if (kind == Kind::choice) {
    for (const Choice& choice : choices) {
      if (choice.word != text) continue;
      if (!choice.refusal.empty()) throw UserError("{} {} is {}", spelling, choice.word, choice.refusal);
      return choice.value;
    }
    throw UserError("{} must be {}: got {}", spelling, accepted(), in_quotes(text));
  }
  if (kind == Kind::boolean) {
    if (text == "true" || text == "1") return 1;
    if (text == "false" || text == "0") return 0;
    throw UserError("{} must be {}: got {}", spelling, accepted(), in_quotes(text));
  }
  if (!zero_word.empty() && text == zero_word) return 0;
  int64_t value = 0;
  if (kind == Kind::decimal) {
    if (!parse_decimal(text, value) || value < min || value > max)
      throw UserError("{} must be a number, {}: got {}", spelling, accepted(), in_quotes(text));
    return value;
  }
  const bool is_number = kind == Kind::size ? parse_size(text, value) : parse_integer(text, value);
  if (!is_number || value < min || value > max)
    throw UserError("{} must be a whole number, {}: got {}", spelling, accepted(), in_quotes(text));
  return value;
}

const std::vector<Flag>& engine_flags() {
  static const std::vector<Flag> flags = make_flags();
  return flags;
}

const Flag* find_flag(std::string_view name) {
  for (const Flag& flag : engine_flags()) {
    if (name == flag.name || (!flag.short_name.empty() && name == flag.short_name)) return &flag;
    if (std::find(flag.aliases.begin(), flag.aliases.end(), name) != flag.aliases.end()) return &flag;
  }
  return nullptr;
}

bool parse_size(std::string_view text, int64_t& value) {
  static constexpr std::string_view kDecimal = "kmgt", kBinary = "KMGT";
  int64_t unit = 1;
  bool decimals_allowed = false;
  if (!text.empty()) {
    const size_t decimal = kDecimal.find(text.back()), binary = kBinary.find(text.back());
    if (decimal != std::string_view::npos) {
      for (size_t i = 0; i <= decimal; ++i) unit *= 1000;
      decimals_allowed = true;
    } else if (binary != std::string_view::npos) {
      unit = int64_t{1} << (10 * (binary + 1));
    }
    if (unit != 1) text.remove_suffix(1);
  }
  const size_t point = text.find('.');
  if (point != std::string_view::npos && !decimals_allowed) return false;
  const std::string_view whole_text = text.substr(0, point);
  int64_t whole = 0;
  if (!parse_integer(whole_text, whole) || whole < 0 || whole_text.front() == '-' || whole > kMaxInt64 / unit) return false;
  int64_t fraction = 0;
  if (point != std::string_view::npos) {
    const std::string_view digits = text.substr(point + 1);
    if (digits.empty()) return false;
    for (int64_t place = unit; const char digit : digits) {
      if (digit < '0' || digit > '9') return false;
      if (place % 10 != 0 && digit != '0') return false;  // less than one
      place /= 10;
      fraction += place * (digit - '0');
    }
  }
  if (whole * unit > kMaxInt64 - fraction) return false;
  value = whole * unit + fraction;
  return true;
}

EngineConfig engine_config(const std::vector<std::pair<const Flag*, std::string>>& given, const Environment& environment) {
  EngineConfig config;
  for (const Flag& flag : engine_flags()) {
    const std::string variable = flag.environment();
    const auto last =
        std::find_if(given.rbegin(), given.rend(), [&](const auto& pair) { return pair.first->name == flag.name; });
    if (last != given.rend()) {
      flag.set(config, flag.parse(last->second, "--" + flag.name));
    } else if (const char* text = environment(variable.c_str()); text != nullptr) {
      flag.set(config, flag.parse(text, variable));
    }
  }
  return config;
}

void refuse_misspelt_variables(const std::vector<std::string>& variables) {
  constexpr std::string_view kPrefix = "WEFT_";
  std::vector<std::string> known;
  for (const Flag& flag : engine_flags()) known.push_back(flag.environment().substr(kPrefix.size()));
  for (const std::string& variable : variables) {
    const std::string name = variable.substr(std::min(kPrefix.size(), variable.size()));
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (const std::string near = closest(name, known); !near.empty())
      throw UserError("unknown variable {}: did you mean {}{}?", variable, kPrefix, near);
  }
}

std::vector<std::string> plain_arguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      out.insert(out.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    const size_t start = argument.starts_with("--") ? 2 : argument.starts_with("-") ? 1 : std::string::npos;
    if (start == std::string::npos) {
      out.push_back(argument);
      continue;
    }
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string name = dashes(std::string_view(argument).substr(start, equals - start));
    const Flag* flag = find_flag(name);
    const bool is_short = flag != nullptr && name == flag->short_name;
    const Flag* negated = name.starts_with("no-") ? find_flag(std::string_view(name).substr(3)) : nullptr;
    if (negated != nullptr && negated->kind == Flag::Kind::boolean && start == 2) {
      if (equals < argument.size()) throw UserError("{} takes no value", argument.substr(0, equals));
      out.push_back("--" + negated->name + "=false");
    } else if (flag == nullptr || is_short != (start == 1)) {
      out.push_back(start == 2 ? "--" + name + argument.substr(equals) : argument);
    } else if (flag->kind == Flag::Kind::boolean && equals == argument.size()) {
      out.push_back("--" + flag->name + "=true");
    } else if (equals < argument.size()) {
      out.push_back("--" + flag->name + argument.substr(equals));
    } else if (i + 1 < arguments.size()) {
      out.push_back("--" + flag->name + "=" + arguments[++i]);
    } else {
      throw UserError("{} needs a value: {}", argument, flag->accepted());
    }
  }
  return out;
}

std::string closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (const size_t distance = edits(word, candidate); distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string flags_help() {
  std::string out;
  for_each_group([&](const std::string& group, const std::vector<Flag>& flags) {
    out += "\n" + group + ":\n";
    for (const Flag& flag : flags) {
      out += fmt::format("  {}\n", fmt::join(spellings(flag), ", "));
      const std::string text =
          fmt::format("{} {} [{}] ({})", flag.help, flag.accepted() + ".", flag.default_text(), flag.environment());
      out += "      " + wrapped(text, 6, kHelpWidth) + "\n";
    }
  });
  return out;
}

std::string flags_markdown() {
  std::string out =
      "# Engine flags\n\n"
      "Made by `weft flags --markdown` from the table in `src/tools/flags.cc`; do not edit.\n\n"
      "A flag on the command line wins over its environment variable, that over the default. Underscores may stand for "
      "dashes.\n"
      "Where a number may have a suffix, `k`, `m`, `g` are powers of 1000 and `K`, `M`, `G` powers of 1024.\n";
  for_each_group([&](const std::string& group, const std::vector<Flag>& flags) {
    out += "\n## " + group + "\n\n| flag | values | default | meaning |\n| --- | --- | --- | --- |\n";
    for (const Flag& flag : flags) {
      out += fmt::format("| `{}`<br>`{}` | {} | {} | {} |\n", fmt::join(spellings(flag), "` `"), flag.environment(),
                         flag.accepted(), flag.default_text(), flag.help);
    }
  });
  return out;
}

}  // namespace weft

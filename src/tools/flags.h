#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config.h"

namespace weft {

/// One engine flag, as data. The command line, environment variables, help and docs/flags.md all come from the table of these,
/// so a flag is added by one entry in flags.cc.
struct Flag {
  enum class Kind : uint8_t {
    integer,  ///< a whole number
    size,     ///< a whole number that may end in k, m, g (powers of 1000) or K, M, G (powers of 1024)
    decimal,  ///< a number with up to nine decimals; its value is in billionths
    boolean,  ///< --NAME or --no-NAME, without a value; true or false in a variable
    choice,   ///< one of some words
  };
  struct Choice {
    std::string word;
    int64_t value = 0;
    std::string refusal = {};  ///< not empty: a word that users know, and why this version does not take it
  };

  std::string name;             ///< "tensor-parallel-size"; "--" in front and underscores for dashes are the caller's business
  std::string short_name = {};  ///< "tp", written -tp
  std::vector<std::string> aliases = {};
  std::string group, help;
  Kind kind = Kind::integer;
  int64_t min = 0, max = 0;    ///< integer, size and decimal
  std::string zero_word = {};  ///< the word for 0, where 0 is no number: "auto", "all", "none"
  std::vector<Choice> choices = {};

  void (*set)(EngineConfig&, int64_t) = nullptr;
  int64_t (*get)(const EngineConfig&) = nullptr;

  /// "WEFT_TENSOR_PARALLEL_SIZE".
  std::string environment() const;
  /// What may be written: "1 to 1024", "auto, queries or keys".
  std::string accepted() const;
  /// The value in `config`, as a user would write it.
  std::string text_in(const EngineConfig& config) const;
  /// The value of a default EngineConfig, as a user would write it.
  std::string default_text() const { return text_in(EngineConfig{}); }
  /// The value of `text`. Throws UserError, which names `spelling` (the flag or the variable), the text and what is accepted.
  int64_t parse(std::string_view text, std::string_view spelling) const;
};

const std::vector<Flag>& engine_flags();
/// The flag of this long name, short name or alias (without dashes in front), or nullptr.
const Flag* find_flag(std::string_view name);

/// A whole number with an optional suffix: k, m, g are powers of 1000 and may follow decimals (1.5k), K, M, G powers of 1024.
/// Returns false where `text` is not one, or does not fit in int64_t.
bool parse_size(std::string_view text, int64_t& value);

/// Looks up an environment variable; nullptr if there is none. std::getenv outside of tests.
using Environment = std::function<const char*(const char*)>;
/// Flags as given on the command line, in order; the last one wins. Where a flag is not given its variable counts, then the
/// default. Throws UserError.
EngineConfig engine_config(const std::vector<std::pair<const Flag*, std::string>>& given, const Environment& environment);

/// Throws UserError where one of `variables`, names that begin with WEFT_, is no flag's but is spelled much like one.
void refuse_misspelt_variables(const std::vector<std::string>& variables);

/// Rewrites what argv may hold and CLI11 cannot read into "--name=value" of the table's names: -tp 4, -tp=4, aliases,
/// underscores for dashes, values that begin with a dash, --no-NAME. Other arguments stay as they are. Throws UserError for an
/// engine flag without a value.
std::vector<std::string> plain_arguments(const std::vector<std::string>& arguments);

/// The candidate that is spelled most like `word`, or "" if none is close.
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

/// The table for people: in a terminal, and as docs/flags.md.
std::string flags_help();
std::string flags_markdown();

}  // namespace weft

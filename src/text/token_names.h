#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/json_fields.h"

namespace weft {

/// Which id is which token while the files of a tokenizer are read: of the vocabulary and of all that is added to it. A text
/// has one id and an id one text; files that say otherwise are refused.
///
/// Keeps views of the texts that it is given: they must outlive it.
class TokenNames {
 public:
  explicit TokenNames(const JsonFields& fields) : fields_(fields) {}

  /// Takes a token of the vocabulary; false if the id is another's.
  bool take(int32_t id, std::string_view content);
  std::optional<int32_t> find(std::string_view content) const;
  bool has(int32_t id) const { return contents_.contains(id); }

  /// Adds a token that stands for itself, or gives a known one other properties.
  void add(AddedToken token, std::string_view content);
  /// The same from an object with "content" and flags.
  void add(const JsonFields::Json& entry, int32_t id);

  /// What surrounds every text, and which tokens begin and end one.
  struct Around {
    std::vector<int32_t> before, after;
    std::optional<int32_t> bos, eos;
  };
  /// Heeds a tokenizer_config.json: added_tokens_decoder, bos_token, eos_token, add_bos_token, add_eos_token.
  void read_config(const JsonFields::Json& config, Around& around);

  std::vector<AddedToken>& added() { return added_; }

 private:
  std::optional<int32_t> named(const JsonFields::Json& config, const char* key) const;
  void put_around(const JsonFields::Json& config, const char* flag, const char* name, std::optional<int32_t> token,
                  std::vector<int32_t>& around) const;

  const JsonFields& fields_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<int32_t, std::string_view> contents_;
  std::unordered_map<int32_t, size_t> places_;  ///< id -> index of added_
  std::vector<AddedToken> added_;
};

}  // namespace weft

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"

namespace weft {

/// What a tokenizer.json asks for, checked: every id is in use, every pattern compiles.
struct TokenizerFile {
  std::vector<std::pair<std::string, int32_t>> vocabulary;  ///< as written there, in the byte-level alphabet
  std::vector<Bpe::Merge> merges;                           ///< by rank
  bool ignore_merges = false, fuse_unknown = false;
  std::optional<int32_t> unknown;

  bool nfc = false;
  std::vector<PreTokenizer::Split> splits;
  bool prefix_space = false;
  bool byte_level_regex = false;  ///< after the splits, GPT-2's
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> before, after;  ///< special tokens around every text

  std::optional<int32_t> bos, eos;
};

/// Reads tokenizer.json and tokenizer_config.json (empty: there is none). Throws UserError that names the component and `path`.
TokenizerFile read_tokenizer_file(std::string_view json, std::string_view config, std::string_view path);

}  // namespace weft

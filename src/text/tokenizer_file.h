#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/token_model.h"

namespace weft {

/// A tokenizer as its files describe it, checked: every id is in use, every pattern compiles.
struct TokenizerFile {
  std::unique_ptr<const TokenModel> model;
  std::vector<std::string> bytes;  ///< by id, what a token of the vocabulary stands for; empty where there is none
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> before, after;  ///< special tokens around every text
  std::optional<int32_t> bos, eos;
  bool drops_first_space = false;  ///< a decoded text loses one space at its beginning, which encoding put there
};

/// Reads tokenizer.json and tokenizer_config.json (empty: there is none). Throws UserError that names the component and `path`.
TokenizerFile read_tokenizer_file(std::string_view json, std::string_view config, std::string_view path);

}  // namespace weft

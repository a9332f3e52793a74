#pragma once

#include <string_view>

#include "text/tokenizer_file.h"

namespace weft {

/// A tokenizer.model and what may lie beside it in a model's folder; empty: it is not there.
struct SentencePieceFiles {
  std::string_view model;
  std::string_view config = {};              ///< tokenizer_config.json
  std::string_view special_tokens_map = {};  ///< names tokens that tokenizer_config.json does not
  std::string_view added_tokens = {};        ///< added_tokens.json: texts and their ids
};

/// Reads them as transformers' LlamaTokenizer and GemmaTokenizer do: the model's control pieces are special tokens, a text
/// begins with bos_token unless add_bos_token is false, and with "legacy": false only the beginning of a text gets a space in
/// front, not what follows an added token. Throws UserError that names what is wrong or not supported, and `path`.
TokenizerFile read_sentence_piece(const SentencePieceFiles& files, std::string_view path);

}  // namespace weft

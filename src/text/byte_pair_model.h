#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"

namespace weft {

/// The character that stands for a space in vocabularies that came from SentencePiece, U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// Byte pair encoding as tokenizer.json describes it: a normal form, stages that cut, merges. With a byte-level vocabulary, or
/// with one that came from SentencePiece, where spaces are written as marks and text need not be cut at all.
class BytePairModel : public TokenModel {
 public:
  enum class Prefix : uint8_t { never, first, always };
  /// Writes spaces as marks. By `prefix`, a text that begins with no mark gets one: all, or the one that nothing was before.
  struct SpaceMarks {
    Prefix prefix = Prefix::always;
    bool cuts = true;  ///< before every mark
  };
  /// `vocabulary.byte_fallback` tells the two kinds of vocabulary apart.
  BytePairModel(NormalForm form, std::optional<SpaceMarks> marks, PreTokenizer words, Bpe::Vocabulary vocabulary);

  std::string_view normalize(std::string_view text, std::string& memory) const override;
  void encode(std::string_view text, bool begins, int64_t max_tokens, std::vector<int32_t>& ids) const override;
  int64_t most_tokens_per_byte() const override;
  int64_t bytes_per_token_byte() const override;

 private:
  /// Appends the tokens of a word, cut before the marks that no token reaches across: the same tokens in less time.
  bool encode_marked(std::string_view word, int64_t max_tokens, std::vector<int32_t>& ids) const;

  NormalForm form_;
  std::optional<SpaceMarks> marks_;
  PreTokenizer words_;
  bool by_character_;
  std::vector<char32_t> joined_to_mark_;  ///< characters that some merge has before a mark, sorted
  Bpe bpe_;
};

}  // namespace weft

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/token_model.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace weft {

/// A SentencePiece model, unigram or BPE, run by its own library.
///
/// The library takes hundreds of bytes of memory for a token, and quadratic time for a row of unknown characters. So a long
/// text is given to it in parts, cut where no piece of the vocabulary reaches across: the ids are those of the whole. (Of a
/// unigram model up to rounding: the library adds scores in float32, which over a long text decides between pieces that are as
/// probable.) A text of which 2 MiB and more cannot be cut is a UserError; 64 KiB are the limit for a model without bytes as
/// pieces that also rewrites characters, where cuts are between ASCII words only.
///
/// The file is trusted as far as the library trusts it.
class SentencePieceModel : public TokenModel {
 public:
  /// Which texts get the space in front that the vocabulary was made with.
  enum class Prefix : uint8_t {
    as_trained,  ///< each, if the model was trained so
    first,       ///< the one that nothing was before
    never,
  };
  /// Throws UserError for what is no such model, or puts spaces elsewhere than before words.
  SentencePieceModel(std::string_view serialized, Prefix prefix, std::string_view path);
  ~SentencePieceModel() override;

  int32_t size() const;
  /// As the model writes it, the space as U+2581.
  const std::string& piece(int32_t id) const;
  bool is_control(int32_t id) const;
  /// Stands for all that is no piece, where bytes are none.
  bool is_unknown(int32_t id) const;
  /// The byte that a piece stands for.
  std::optional<uint8_t> byte(int32_t id) const;
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  /// Whether some text gets a space in front.
  bool adds_space() const;

  std::string_view normalize(std::string_view text, std::string&) const override { return text; }
  void encode(std::string_view text, bool begins, int64_t max_tokens, std::vector<int32_t>& ids) const override;
  int64_t most_tokens_per_byte() const override;
  int64_t bytes_per_token_byte() const override;

 private:
  /// What the file says of how text is made ready.
  struct Spec {
    bool adds_prefix = true;     ///< a space before every text
    bool collapses = true;       ///< spaces at the ends, and all but one of several
    bool writes_marks = true;    ///< U+2581 for a space
    bool marks_behind = false;   ///< words end with the mark instead
    bool rewrites_text = false;  ///< by a table of characters
    bool rewrites_back = false;  ///< when decoding
  };
  static Spec read_spec(std::string_view serialized);
  using Processor = std::unique_ptr<const sentencepiece::SentencePieceProcessor>;
  static Processor load(std::string serialized, std::optional<bool> adds_prefix, std::string_view path);

  void read_pieces();
  /// Where a text that begins at `begin` may be cut first, at `from` or behind; its size if nowhere.
  size_t next_cut(std::string_view text, size_t from) const;
  void encode_part(const Processor& processor, std::string_view part, std::vector<int32_t>& ids) const;

  Spec spec_;
  Prefix prefix_;
  Processor first_, further_;  ///< for the first part of a text and for the others; further_ may be null: the same
  bool knows_bytes_ = false;
  bool marks_lead_ = true;               ///< no piece has a mark behind another character
  std::unordered_set<uint64_t> joined_;  ///< pairs of characters that are neighbours in some piece
};

}  // namespace weft

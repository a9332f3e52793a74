#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct EncodeOptions {
  /// Adds what the tokenizer puts around every text, such as a begin-of-text token.
  bool add_special_tokens = true;
  /// Added tokens such as "<|im_end|>" written in the text become that token. Off for text that a user may have written: it
  /// then stays plain text.
  bool parse_added_tokens = true;
  /// A piece of text that stands for nothing: it is left out, and no added token is read across it. See break_special().
  std::string_view mark = {};
  /// Once there are more ids than this, the rest of the text is not read: a caller with a limit need not wait for a text that
  /// is far too long. The result then has more than max_tokens ids.
  int64_t max_tokens = std::numeric_limits<int64_t>::max();
};

struct TokenizerFile;

/// Text to token ids and back, by a Hugging Face tokenizer.json with a BPE model, byte-level or with byte fallback, or by a
/// SentencePiece model. Ids equal those of the libraries that these come from. A file that asks for anything else is refused
/// with its name: nothing is approximated.
///
/// Immutable once loaded: any number of threads may use one object. Time is linear in the text but for a logarithm, memory at
/// most 40 bytes per byte of text, and stack far below 512 KiB, whatever the text. (That time holds for the patterns of the
/// well-known families. A pattern that takes too many steps on a text is a UserError. What SentencePiece models bound is said
/// in sentence_piece.h.)
class Tokenizer {
 public:
  /// Reads a model folder, a tokenizer.json or a file NAME.model of SentencePiece. A folder's tokenizer.json comes before its
  /// tokenizer.model. From a folder, tokenizer_config.json is heeded too: add_bos_token and add_eos_token, bos_token and
  /// eos_token, added_tokens_decoder; where the files contradict each other, the folder is refused. Throws UserError naming the
  /// component and the file, SystemError if a file cannot be read.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& folder_or_file);
  /// Whether `folder` has a tokenizer.json or a tokenizer.model.
  static bool is_in(const std::filesystem::path& folder);
  /// The same from text already read. `config` is that of tokenizer_config.json, empty if there is none; `path` is for
  /// messages.
  static std::unique_ptr<Tokenizer> parse(std::string_view json, std::string_view config = "",
                                          std::string_view path = "tokenizer.json");
  ~Tokenizer();

  /// Throws UserError if `text` is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// `text` with `mark` inside of everything that would be read as a special token: encoded with that mark it is plain text,
  /// whatever is put around it. `mark` is a character that the text does not have.
  std::string break_special(std::string_view text, std::string_view mark) const;

  /// The bytes of a token, which may be a part of a character only. Empty for an id without a token: models have more rows than
  /// tokenizers have tokens. Valid as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;
  /// The text that begins with these tokens, as UTF-8, invalid bytes as U+FFFD. Some tokenizers put a space before every text:
  /// here it is left out again.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;
  /// The same of tokens that others go before, with every space.
  std::string decode_further(std::span<const int32_t> ids, bool skip_special = true) const;

  /// The greatest id plus one.
  int32_t vocab_size() const;
  /// Whether the token steers the model and is no text, e.g. "<|im_end|>".
  bool is_special(int32_t id) const;
  /// The token that is written so, special ones too: "<|im_end|>", or " the".
  std::optional<int32_t> find(std::string_view token) const;
  /// As tokenizer_config.json names them, if it does.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

  /// Bounds that cost nothing: a text of so many bytes has at least, and at most, so many tokens, special ones included.
  int64_t least_tokens(int64_t bytes) const;
  int64_t most_tokens(int64_t bytes) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  static std::unique_ptr<Tokenizer> of(TokenizerFile file);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace weft

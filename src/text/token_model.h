#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// The part of a tokenizer that its vocabulary decides: text in which no added token is written, to ids.
///
/// Immutable: any number of threads may use one object. Texts are UTF-8 of at most 1 GiB.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// A text as the vocabulary has it, in `memory` or where it was. Some added tokens are looked for in this.
  virtual std::string_view normalize(std::string_view text, std::string& memory) const = 0;

  /// Appends the tokens of normalized text; once there are more than `max_tokens` in `ids` it may leave out the rest. `begins`:
  /// nothing was before it in the whole text. Throws UserError for a text that would take too long.
  virtual void encode(std::string_view text, bool begins, int64_t max_tokens, std::vector<int32_t>& ids) const = 0;

  /// Every byte of a text becomes at most so many tokens.
  virtual int64_t most_tokens_per_byte() const = 0;
  /// So many bytes of a text are at least one byte of its tokens; 0: nothing can be said.
  virtual int64_t bytes_per_token_byte() const = 0;
};

}  // namespace weft

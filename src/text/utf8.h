#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

/// Where `text` stops being UTF-8, as a byte offset; its size if it is UTF-8 throughout. Surrogates and overlong forms are not
/// UTF-8.
size_t valid_utf8_prefix(std::string_view text);

/// The character that begins at `text[at]` and its length in bytes. Requires: valid UTF-8.
struct Character {
  char32_t code;
  uint32_t bytes;
};
Character character_at(std::string_view text, size_t at);
/// The character that ends just before `text[end]`. Requires: valid UTF-8, end > 0.
Character character_before(std::string_view text, size_t end);

void append_utf8(std::string& text, char32_t code);

/// Bytes to UTF-8, piece by piece. Of a character that has begun nothing is given before it is complete. Each longest run of
/// bytes that begins some character but does not continue it becomes one U+FFFD, as does any other invalid byte (the Unicode
/// standard's "substitution of maximal subparts").
class Utf8Stream {
 public:
  void append(std::string_view bytes, std::string& out);
  /// The end: an incomplete character becomes U+FFFD.
  void finish(std::string& out);
  size_t held_bytes() const { return held_; }

 private:
  char character_[4];
  uint32_t held_ = 0;
};

}  // namespace weft

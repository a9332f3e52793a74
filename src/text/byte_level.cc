#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace weft {
namespace {

constexpr bool is_written_as_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr int kAlphabetEnd = 0x100 + 68;  // 256 bytes less 94 + 12 + 82 that are written as themselves

constexpr std::array<char16_t, 256> kCharacters = [] {
  std::array<char16_t, 256> characters{};
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) characters[byte] = is_written_as_itself(byte) ? static_cast<char16_t>(byte) : next++;
  return characters;
}();

constexpr std::array<int16_t, kAlphabetEnd> kBytes = [] {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

char32_t byte_level_character(uint8_t byte) { return kCharacters[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view written) {
  std::string bytes;
  for (size_t at = 0; at < written.size();) {
    const auto [code, length] = character_at(written, at);
    if (code >= kAlphabetEnd || kBytes[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[code]);
    at += length;
  }
  return bytes;
}

}  // namespace weft

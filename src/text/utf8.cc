#include "text/utf8.h"

#include <cstring>

namespace weft {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the character that a byte begins, 0 if it begins none.
uint32_t length_of(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

/// Whether `byte` can be byte number `at` >= 1 of a character that begins with `lead`.
bool continues(uint8_t lead, uint32_t at, uint8_t byte) {
  if (at == 1) {
    if (lead == 0xE0) return byte >= 0xA0 && byte <= 0xBF;  // else overlong
    if (lead == 0xED) return byte >= 0x80 && byte <= 0x9F;  // else a surrogate
    if (lead == 0xF0) return byte >= 0x90 && byte <= 0xBF;  // else overlong
    if (lead == 0xF4) return byte >= 0x80 && byte <= 0x8F;  // else above U+10FFFF
  }
  return byte >= 0x80 && byte <= 0xBF;
}

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    while (at + 8 <= text.size() && (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080) == 0)) at += 8;
    if (at == text.size()) break;
    const uint8_t lead = byte_at(text, at);
    const uint32_t length = length_of(lead);
    if (length == 0 || at + length > text.size()) return at;
    for (uint32_t i = 1; i < length; ++i) {
      if (!continues(lead, i, byte_at(text, at + i))) return at;
    }
    at += length;
  }
  return at;
}

Character character_at(std::string_view text, size_t at) {
  const uint8_t lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1};
  const uint32_t length = length_of(lead);
  char32_t code = lead & (0xFFu >> (length + 1));
  for (uint32_t i = 1; i < length; ++i) code = code << 6 | (byte_at(text, at + i) & 0x3Fu);
  return {code, length};
}

Character character_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (byte_at(text, at) & 0xC0) == 0x80) --at;
  return character_at(text, at);
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

void Utf8Stream::append(std::string_view bytes, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (held_ == 0) {
      const size_t valid = valid_utf8_prefix(bytes.substr(at));
      out.append(bytes.substr(at, valid));
      at += valid;
      if (at == bytes.size()) return;
    }
    const uint8_t byte = byte_at(bytes, at);
    if (held_ > 0 && !continues(static_cast<uint8_t>(character_[0]), held_, byte)) {
      out += kReplacement;
      held_ = 0;
      continue;
    }
    ++at;
    if (held_ == 0 && length_of(byte) == 0) {
      out += kReplacement;
      continue;
    }
    character_[held_++] = static_cast<char>(byte);
    if (held_ == length_of(static_cast<uint8_t>(character_[0]))) {
      out.append(character_, held_);
      held_ = 0;
    }
  }
}

void Utf8Stream::finish(std::string& out) {
  if (held_ > 0) out += kReplacement;
  held_ = 0;
}

}  // namespace weft

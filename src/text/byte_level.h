#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

/// Byte-level vocabularies write every byte as a printable character: the printable ones of Latin-1 as themselves, the others,
/// in order, as U+0100 and on. So a space is written as U+0120.
char32_t byte_level_character(uint8_t byte);

/// The bytes that `written` stands for, or nothing if it has a character that stands for none. Requires: valid UTF-8.
std::optional<std::string> byte_level_bytes(std::string_view written);

}  // namespace weft

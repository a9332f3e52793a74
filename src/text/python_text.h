#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What Python's str can do, on UTF-8. Positions and lengths count characters. All texts must be valid UTF-8.
namespace weft::python {

int64_t length(std::string_view text);
/// Where `part` begins in `text`, not before byte `from`; npos if nowhere. Linear time, which std::string_view::find is not.
size_t find(std::string_view text, std::string_view part, size_t from = 0);
/// Where the character of that number begins, as a byte offset; at most the size.
size_t byte_offset(std::string_view text, int64_t character);

/// str.isspace() of one character.
bool is_space(char32_t code);
/// Whether `str.isprintable()` shows it as it is.
bool is_printable(char32_t code);

/// str.strip(), lstrip() and rstrip(): of white space, or of the characters of `set`.
enum class Side { kBoth, kLeft, kRight };
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set = {});

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string casefold(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swapcase(std::string_view text);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
bool is_title(std::string_view text);

bool is_space(std::string_view text);
bool is_digit(std::string_view text);
bool is_numeric(std::string_view text);
bool is_decimal(std::string_view text);
bool is_alpha(std::string_view text);
bool is_alnum(std::string_view text);
bool is_ascii(std::string_view text);
bool is_identifier(std::string_view text);
bool is_printable(std::string_view text);

/// str.splitlines(keepends).
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);
/// str.split(): at runs of white space; at most `most` cuts unless it is negative.
std::vector<std::string_view> split(std::string_view text, int64_t most = -1);
std::vector<std::string_view> rsplit(std::string_view text, int64_t most = -1);
/// The same at a separator, which is not empty. From the left in linear time, from the right in that times the separator.
std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t most);
std::vector<std::string_view> rsplit(std::string_view text, std::string_view separator, int64_t most);

/// repr(str): quotes, and escapes for what cannot be printed.
std::string repr(std::string_view text);
/// repr(float).
std::string repr(double value);

/// int(text, base) and float(text), if Python would take it. More than 64 bits are none.
std::optional<int64_t> to_integer(std::string_view text, int base = 10);
std::optional<double> to_float(std::string_view text);

/// Whether \w of Python's re matches it.
bool is_word_character(char32_t code);

}  // namespace weft::python

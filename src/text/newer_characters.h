#pragma once

#include <string>
#include <string_view>

namespace weft {

/// PCRE2 10.42 knows Unicode 14, the tokenizers that ours must equal know Unicode 16. Where a text is cut into words depends on
/// the categories of its characters only. So a text is cut as if each character that is newer than Unicode 14 were an old one
/// of the same category and length.
///
/// If `text` has such characters, writes that text to `replaced` and returns true. Requires: valid UTF-8.
bool replace_newer_characters(std::string_view text, std::string& replaced);

}  // namespace weft

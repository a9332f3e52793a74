#pragma once

#include <string>
#include <string_view>

namespace weft {

/// Unicode's composed normal form (NFC), as Unicode 9 has it. Time is linear in the text but for a logarithm, also where
/// thousands of combining marks follow one letter. Requires: valid UTF-8, below 1 GiB.
std::string composed(std::string_view text);

}  // namespace weft

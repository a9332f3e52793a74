#pragma once

#include <string>
#include <vector>

#include "support/golden_files.h"
#include "support/golden_grid.h"

namespace weft::test {

/// What a golden's run may meet in a serving engine, none of which may change
/// its tokens.
enum class Way {
  cold,      ///< all prompts at once, nothing cached
  replayed,  ///< again, when all of each prompt but its last token is cached
  joined,    ///< the longest prompt arrives while the others decode
  crowded,   ///< a pool in which two prompts fit and their answers do not: one
             ///< gives way and is computed again
  smallest,  ///< the smallest pool that the longest request may have, with the
             ///< others around it
};
const char* to_string(Way way);
inline constexpr Way kWays[] = {Way::cold, Way::replayed, Way::joined, Way::crowded, Way::smallest};

/// Runs a golden greedily in float32, on the ranks and with the sizes of
/// `point`. Returns what differs from its tokens, and where the run was not of
/// this way after all (nothing cached, nobody gave way): empty if all is well.
std::vector<std::string> run_way(const Golden& golden, const GridPoint& point, Way way);

}  // namespace weft::test

#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/golden_grid.h"

namespace weft::test {

/// A small model that no golden covers: its config.json, to be filled with seeded weights.
struct SyntheticModel {
  std::string name;
  nlohmann::json config;
  GridHeads heads;
};

/// Every architecture, with head counts that allow W = 3, 6 and 8 (24 heads over one KV head or MLA) or W = 8 (8 heads), and
/// with MLP, expert and vocabulary sizes that no tp > 1 divides.
std::vector<SyntheticModel> synthetic_models();

}  // namespace weft::test

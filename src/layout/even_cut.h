#pragma once

#include <cstdint>

#include "layout/shard_layout.h"

namespace weft {

/// `size` things cut into `parts` runs as evenly as possible: the first size % parts runs take one more. Runs may be empty.
/// MLP rows, experts' rows and the vocabulary are cut like this; heads must divide instead (RankGrid).
struct EvenCut {
  int64_t size = 0;
  int parts = 1;

  constexpr Range part(int index) const { return {start(index), start(index + 1)}; }
  /// The largest part: what a collective with equal sizes pads to.
  constexpr int64_t padded() const { return (size + parts - 1) / parts; }
  /// The part that holds `item`.
  constexpr int owner(int64_t item) const {
    const int64_t small = size / parts, large_parts = size % parts, split = large_parts * (small + 1);
    return static_cast<int>(item < split ? item / (small + 1) : large_parts + (item - split) / small);
  }

 private:
  constexpr int64_t start(int index) const {
    const int64_t extra = size % parts;
    return size / parts * index + (index < extra ? index : extra);
  }
};

}  // namespace weft

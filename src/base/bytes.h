#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>

namespace weft {

/// Bytes for people: "17 B", "1.50 GiB".
inline std::string readable_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

/// For messages, the exact number beside it: "1.50 GiB (1610612736 bytes)".
inline std::string exact_bytes(int64_t bytes) {
  return bytes < 1024 ? fmt::format("{} bytes", bytes) : fmt::format("{} ({} bytes)", readable_bytes(bytes), bytes);
}

}  // namespace weft

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weft {

/// Where a request belongs in somebody's distributed trace: W3C Trace Context, header `traceparent`.
struct TraceContext {
  std::string trace_id;   ///< 32 digits
  std::string parent_id;  ///< 16 digits: the caller's span
  std::string flags;      ///< 2 digits

  /// The header as a span of ours, 16 hexadecimal digits, passes it on.
  std::string header(std::string_view span_id) const;
};

/// Nothing if the header is not one: it is then to be ignored as if it were not there. Of versions to come what is known is
/// read.
std::optional<TraceContext> parse_traceparent(std::string_view header);

}  // namespace weft

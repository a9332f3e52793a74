#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace weft::bench {

/// The data of server-sent events (WHATWG HTML, "Parsing an event stream"), from bytes that come in pieces of any size. Lines
/// may end in LF, CR or CR LF; comments and other fields are skipped; several data lines of one event are joined by LF.
class SseParser {
 public:
  /// An event may be at most this large.
  static constexpr size_t kMaxEventBytes = size_t{64} << 20;

  /// Calls `event` with the data of every event that `bytes` completes. Throws SystemError for an event that is too large.
  void feed(std::string_view bytes, const std::function<void(std::string_view)>& event);

 private:
  void end_line(const std::function<void(std::string_view)>& event);

  std::string line_;
  std::string data_;
  bool has_data_ = false;  ///< a data field came, possibly an empty one
  bool after_cr_ = false;  ///< an LF now would belong to the line that has ended
  bool first_line_ = true;
};

}  // namespace weft::bench

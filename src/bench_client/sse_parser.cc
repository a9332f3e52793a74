#include "bench_client/sse_parser.h"

#include <algorithm>

#include "base/check.h"

namespace weft::bench {

void SseParser::feed(std::string_view bytes, const std::function<void(std::string_view)>& event) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kMaxEventBytes)
      throw SystemError("the server sent an event of more than {} bytes", kMaxEventBytes);
    if (end == bytes.size()) return;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(event);
  }
}

void SseParser::end_line(const std::function<void(std::string_view)>& event) {
  std::string_view line = line_;
  if (first_line_ && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  first_line_ = false;
  if (line.empty()) {
    if (has_data_) event(data_);
    data_.clear();
    has_data_ = false;
  } else {
    // A line without a colon is a field without a value; one that begins with a colon is a comment.
    const size_t colon = std::min(line.find(':'), line.size());
    if (line.substr(0, colon) == "data") {
      std::string_view value = line.substr(std::min(colon + 1, line.size()));
      if (value.starts_with(' ')) value.remove_prefix(1);
      if (has_data_) data_ += '\n';
      data_ += value;
      has_data_ = true;
    }
  }
  line_.clear();
}

}  // namespace weft::bench

#include "server/http_text.h"

#include <algorithm>
#include <charconv>
#include <ctime>

namespace weft {

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

std::string clean_id(std::string_view id) {
  constexpr size_t kMost = 128;
  std::string out(id.substr(0, kMost));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < '!' || c > '~'; }, '_');
  return out;
}

std::string path_of(std::string_view target) {
  if (target.starts_with("http://") || target.starts_with("https://"))
    target.remove_prefix(std::min(target.find('/', target.find("//") + 2), target.size()));
  target = target.substr(0, target.find('?'));
  std::string out;
  for (size_t i = 0; i < target.size(); ++i) {
    unsigned code = 0;
    const std::string_view hex = target.substr(std::min(i + 1, target.size()), 2);
    const bool coded =
        target[i] == '%' && hex.size() == 2 && std::from_chars(hex.data(), hex.data() + 2, code, 16).ptr == hex.data() + 2;
    out += coded ? static_cast<char>(code) : target[i];
    if (coded) i += 2;
  }
  return out;
}

}  // namespace weft

#include "model/strict_json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/check.h"

namespace weft {
namespace {

constexpr size_t kShownBytes = 80;

/// Throws on what nlohmann's parser would let pass: deep nesting, and a key that comes twice (the last would win).
class Rules {
 public:
  Rules(std::string_view what, std::string_view path, int max_depth) : what_(what), path_(path), max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth_) throw UserError("{} is nested too deep: more than {} levels, path {}", what_, max_depth_, path_);
    }
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw UserError("{} holds a key twice: {}, path {}", what_, in_quotes(parsed.get_ref<const std::string&>()), path_);
    }
    return true;
  }

 private:
  std::string_view what_, path_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, std::string_view what, std::string_view path, int max_depth) {
  try {
    Rules rules(what, path, max_depth);
    return nlohmann::json::parse(text.begin(), text.end(), std::ref(rules));
  } catch (const nlohmann::json::parse_error& error) {
    throw UserError("{} is not valid JSON: error at byte {} of {}, path {}", what, error.byte, text.size(), path);
  } catch (const nlohmann::json::out_of_range&) {
    throw UserError("{} holds a number that is too large, path {}", what, path);
  }
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kShownBytes)) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    out += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kShownBytes ? "...\"" : "\"");
}

std::string shown(const nlohmann::json& value) {
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  if (value.is_array() && value.size() > 16) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

}  // namespace weft

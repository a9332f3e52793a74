#include "bench_client/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "bench_client/dice.h"

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr double kMostUnits = 1e15;
constexpr size_t kShownBytes = 80;

/// A line of the trace, for reading and for messages.
class Line {
 public:
  Line(std::string_view path, int64_t number) : path_(path), number_(number) {}

  [[noreturn]] void refuse(const std::string& what) const { throw UserError("{}, line {} of {}", what, number_, path_); }

  int64_t count(const json& object, const char* name, int64_t least) const {
    const json& value = object.contains(name) ? object[name] : null_;
    if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > kMostTokens)
      refuse(fmt::format("{} must be a whole number, {} to {}: got {}", name, least, kMostTokens, shown(value)));
    return value.get<int64_t>();
  }
  double time(const json& object, const char* name) const {
    const json& value = object.contains(name) ? object[name] : null_;
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMostUnits))
      refuse(fmt::format("{} must be a number, 0 or more: got {}", name, shown(value)));
    return value.get<double>();
  }
  static std::string shown(const json& value) {
    return value.is_null() ? "nothing" : value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, kShownBytes);
  }

 private:
  std::string_view path_;
  int64_t number_;
  json null_;
};

class Reader {
 public:
  Reader(const TraceSpec& spec, const TokenSource& source, uint64_t seed, Workload& out)
      : spec_(spec), source_(source), seed_(seed), out_(out) {}

  Conversation conversation(const json& object, const Line& line) {
    Conversation out;
    out.start_s = line.time(object, "timestamp") * spec_.seconds_per_unit;
    if (!object.contains("turns")) {
      out.turns.push_back(turn(object, line));
      return out;
    }
    const json& turns = object["turns"];
    if (!turns.is_array() || turns.empty())
      line.refuse("turns must be a list of objects, one at least: got " + Line::shown(turns));
    for (const json& item : turns) {
      if (!item.is_object()) line.refuse("a turn must be an object: got " + Line::shown(item));
      out.turns.push_back(turn(item, line));
      if (item.contains("delay")) out.turns.back().delay_s = line.time(item, "delay") * spec_.seconds_per_unit;
      if (out.turns.back().ids.empty() != out.turns.front().ids.empty())
        line.refuse("turns of one conversation must all have input, or all input_length, where there is no --tokenizer");
    }
    return out;
  }

 private:
  Turn turn(const json& object, const Line& line) {
    const int64_t output = line.count(object, "output_length", 1);
    if (object.contains("input")) {
      if (!object["input"].is_string() || object["input"].get_ref<const std::string&>().empty())
        line.refuse("input must be a text: got " + Line::shown(object["input"]));
      return source_.of_text(object["input"].get<std::string>(), output);
    }
    int64_t left = line.count(object, "input_length", 1);
    std::vector<PromptPart> parts;
    for (const uint64_t block : blocks(object, line)) {
      const int64_t tokens = std::min(left, spec_.block_tokens);
      if (tokens == 0) break;
      parts.push_back(source_.draw(tokens, Dice(seed_, Dice::For::prefix, block)));
      left -= tokens;
    }
    parts.push_back(source_.draw(left, Dice(seed_, Dice::For::tokens, drawn_++)));
    return source_.join(parts, output, out_.inexact);
  }

  static std::vector<uint64_t> blocks(const json& object, const Line& line) {
    std::vector<uint64_t> out;
    if (!object.contains("hash_ids")) return out;
    const json& ids = object["hash_ids"];
    const bool numbers =
        ids.is_array() && std::all_of(ids.begin(), ids.end(), [](const json& id) { return id.is_number_integer(); });
    if (!numbers) line.refuse("hash_ids must be a list of whole numbers: got " + Line::shown(ids));
    for (const json& id : ids)
      out.push_back(id.is_number_unsigned() ? id.get<uint64_t>() : static_cast<uint64_t>(id.get<int64_t>()));
    return out;
  }

  const TraceSpec& spec_;
  const TokenSource& source_;
  const uint64_t seed_;
  Workload& out_;
  uint64_t drawn_ = 0;
};

}  // namespace

Workload trace_workload(std::string_view lines, const TraceSpec& spec, const TokenSource& source, uint64_t seed,
                        std::string_view path) {
  Workload out;
  Reader reader(spec, source, seed, out);
  int64_t number = 0, requests = 0;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view text = lines.substr(at, end - at);
    at = end + 1;
    const Line line(path, ++number);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const json object = json::parse(text, nullptr, false);
    if (!object.is_object())
      line.refuse("a trace has a JSON object in every line: got " + std::string(text.substr(0, kShownBytes)));
    Conversation conversation = reader.conversation(object, line);
    requests += static_cast<int64_t>(conversation.turns.size());
    if (spec.requests && requests > *spec.requests) break;
    out.conversations.push_back(std::move(conversation));
  }
  if (out.conversations.empty()) throw UserError("the trace has no request that --num-prompts leaves, path {}", path);
  double first = *out.conversations.front().start_s;
  for (const Conversation& conversation : out.conversations) first = std::min(first, *conversation.start_s);
  for (Conversation& conversation : out.conversations) *conversation.start_s -= first;
  return out;
}

}  // namespace weft::bench

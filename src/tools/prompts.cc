#include "tools/prompts.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <set>
#include <string>

#include "base/check.h"
#include "model/strict_json.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxName = 200;
constexpr int kMaxDepth = 4;  // object, list of prompts, prompt, list of ids

/// Where in the file something is wrong, for messages.
struct Place {
  std::string_view path;
  std::string what;

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("prompts: {} {}, path {}", what, fmt::format(format, std::forward<Args>(args)...), path);
  }
  Place operator/(std::string_view field) const { return {path, what + "." + std::string(field)}; }
};

void require_known(const Json& object, const std::set<std::string>& known, const Place& place) {
  if (!object.is_object()) place.refuse("must be an object: got {}", shown(object));
  for (const auto& [key, value] : object.items())
    if (!known.contains(key)) place.refuse("has an unknown field {}: it may have {}", in_quotes(key), fmt::join(known, ", "));
}

int32_t to_int32(const Json& value, const Place& place) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  // Unsigned is what the parser makes of every whole number without a sign.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(kMax))
    place.refuse("must be a whole number from 0 to {}: got {}", kMax, shown(value));
  return static_cast<int32_t>(value.get<uint64_t>());
}

std::vector<int32_t> to_ids(const Json& value, const Place& place) {
  if (!value.is_array()) place.refuse("must be a list of token ids: got {}", shown(value));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) ids.push_back(to_int32(id, place / fmt::to_string(ids.size())));
  return ids;
}

RecordFlags to_record(const Json& value, const Place& place) {
  if (!value.is_array()) place.refuse("must be a list: got {}", shown(value));
  RecordFlags record;
  for (const Json& item : value) {
    const std::string word = item.is_string() ? item.get<std::string>() : "";
    if (word == "hidden") {
      record.hidden = true;
    } else if (word == "router") {
      record.router = true;
    } else if (word == "dsa" || word == "mtp") {
      place.refuse("asks for {}, which this version does not compute: it may hold hidden, router", word);
    } else {
      place.refuse("holds {}: it may hold hidden, router", shown(item));
    }
  }
  return record;
}

std::string to_name(const Json& value, const Place& place) {
  if (!value.is_string()) place.refuse("must be a string: got {}", shown(value));
  auto name = value.get<std::string>();
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (name.empty() || name.size() > kMaxName || !printable)
    place.refuse("must be 1 to {} printable ASCII characters without spaces: got {}", kMaxName, in_quotes(name));
  return name;
}

Request to_request(const Json& value, const Place& place) {
  require_known(value, {"name", "input_ids", "generate", "forced_ids", "all_logits", "record"}, place);
  for (const char* field : {"name", "input_ids"})
    if (!value.contains(field)) place.refuse("lacks {}", field);
  Request request;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  request.label = to_name(value["name"], place / "name");
  request.prompt = to_ids(value["input_ids"], place / "input_ids");
  if (request.prompt.empty()) (place / "input_ids").refuse("must hold at least one token id");
  if (value.contains("forced_ids")) request.forced_ids = to_ids(value["forced_ids"], place / "forced_ids");
  const size_t forced = request.forced_ids.size();
  request.max_tokens =
      value.contains("generate") ? to_int32(value["generate"], place / "generate") : static_cast<int64_t>(forced);
  const auto generate = static_cast<size_t>(request.max_tokens);
  if (forced > 0 && forced < generate)
    (place / "forced_ids").refuse("holds {} ids for {} generated tokens: it needs one each", forced, generate);
  request.forced_ids.resize(std::min(forced, generate));
  if (value.contains("all_logits")) {
    if (!value["all_logits"].is_boolean())
      (place / "all_logits").refuse("must be true or false: got {}", shown(value["all_logits"]));
    request.capture.all_logits = value["all_logits"].get<bool>();
  }
  if (value.contains("record")) request.capture.record = to_record(value["record"], place / "record");
  request.capture.want_logits = true;
  return request;
}

template <typename T>
void add(SafetensorsWriter& out, const std::string& name, const std::vector<T>& values, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  WEFT_CHECK_EQ(static_cast<int64_t>(values.size()), count) << name;
  if (count == 0) return;
  out.add(name, dtype_of<T>::value, shape, std::as_bytes(std::span(values)));
}

}  // namespace

std::vector<Request> parse_prompts(std::string_view text, std::string_view path) {
  const Json file = parse_strict_json(text, "prompts", path, kMaxDepth);
  const Place root{path, "the file"};
  require_known(file, {"prompts"}, root);
  if (!file.contains("prompts")) root.refuse("lacks prompts");
  const Json& list = file["prompts"];
  if (!list.is_array() || list.empty()) root.refuse("must hold a list of at least one prompt: prompts is {}", shown(list));
  std::vector<Request> requests;
  std::set<std::string> names;
  for (const Json& item : list) {
    const Place place{path, fmt::format("prompts[{}]", requests.size())};
    requests.push_back(to_request(item, place));
    if (!names.insert(requests.back().label).second)
      place.refuse("has the name of an earlier prompt: {}", requests.back().label);
  }
  return requests;
}

std::vector<Request> load_prompts(const std::filesystem::path& path) {
  std::error_code error;
  // Asked first: opening a pipe waits for its writer, and its size is not known.
  if (!std::filesystem::is_regular_file(path, error))
    throw UserError("cannot read the prompts: no such file, path {}", path.string());
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) throw UserError("cannot read the prompts, path {}", path.string());
  if (static_cast<uint64_t>(size) > kMaxFileBytes)
    throw UserError("the prompts are larger than {} bytes: {} bytes, path {}", kMaxFileBytes, size, path.string());
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size)) throw UserError("cannot read the prompts, path {}", path.string());
  return parse_prompts(text, path.string());
}

void add_result(const ModelConfig& model, const Request& request, const Captured& captured, SafetensorsWriter& out) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t vocab = model.vocab;
  const std::string& label = request.label;
  add(out, label + ".last_logits", captured.last_logits, {vocab});
  add(out, label + ".gen_ids", captured.argmax_ids, {request.max_tokens});
  add(out, label + ".gen_logits", captured.gen_logits, {request.max_tokens, vocab});
  if (request.capture.all_logits) add(out, label + ".logits", captured.logits, {length, vocab});
  for (size_t i = 0; i < captured.hidden.size(); ++i)
    add(out, fmt::format("{}.hidden{}", label, i), captured.hidden[i], {length, model.hidden});
  for (const StepResult::RouterRecord& router : captured.router) {
    const std::string name = fmt::format("{}.router.layer{}", label, router.layer);
    add(out, name + ".experts", router.experts, {length, router.top_k});
    add(out, name + ".weights", router.weights, {length, router.top_k});
  }
}

}  // namespace weft

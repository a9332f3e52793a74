#include "text/json_fields.h"

namespace weft {

std::string shown(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    out += c >= ' ' && c <= '~' ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

JsonFields::Json JsonFields::parsed(std::string_view text, std::string_view what) const {
  try {
    Json json = Json::parse(text.begin(), text.end());
    if (!json.is_object()) fail("{} is not a JSON object", what);
    return json;
  } catch (const Json::parse_error& error) {
    fail("{} is not valid JSON: error at byte {} of {}", what, error.byte, text.size());
  } catch (const Json::out_of_range&) {
    fail("{} holds a number that is too large", what);
  }
}

const JsonFields::Json* JsonFields::member(const Json& parent, const char* key) const {
  const auto found = parent.find(key);
  return found == parent.end() || found->is_null() ? nullptr : &*found;
}

const JsonFields::Json& JsonFields::object(const Json& parent, const char* key, std::string_view where) const {
  const Json* const found = member(parent, key);
  if (found == nullptr || !found->is_object()) fail("{} has no object \"{}\"", where, key);
  return *found;
}

const JsonFields::Json* JsonFields::optional_object(const Json& parent, const char* key) const {
  const Json* const found = member(parent, key);
  if (found != nullptr && !found->is_object()) fail("the tokenizer's {} is not an object", key);
  return found;
}

const JsonFields::Json& JsonFields::list(const Json& parent, const char* key, std::string_view where) const {
  const Json* const found = member(parent, key);
  if (found == nullptr || !found->is_array()) fail("{} has no list \"{}\"", where, key);
  return *found;
}

const std::string& JsonFields::text(const Json& parent, const char* key, std::string_view where) const {
  const Json* const found = member(parent, key);
  if (found == nullptr || !found->is_string()) fail("{} has no text \"{}\"", where, key);
  return found->get_ref<const std::string&>();
}

bool JsonFields::flag(const Json& parent, const char* key, bool otherwise, std::string_view where) const {
  const Json* const found = member(parent, key);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) fail("{} has a \"{}\" that is neither true nor false", where, key);
  return found->get<bool>();
}

int32_t JsonFields::id(const Json& value, std::string_view where) const {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kGreatestId) {
    fail("{} has an id that is not a whole number from 0 to {}", where, kGreatestId);
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

}  // namespace weft

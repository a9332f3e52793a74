#include "text/token_names.h"

#include <algorithm>
#include <string>

namespace weft {
namespace {

using Json = JsonFields::Json;

constexpr const char* kConfig = "tokenizer_config.json";

}  // namespace

bool TokenNames::take(int32_t id, std::string_view content) {
  ids_.emplace(content, id);
  return contents_.emplace(id, content).first->second == content;
}

std::optional<int32_t> TokenNames::find(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void TokenNames::add(AddedToken token, std::string_view content) {
  if (token.id < 0) fields_.fail("an added token has no id: {}", shown(content));
  if (content.empty()) fields_.fail("an added token is empty: id {}", token.id);
  const auto known = ids_.emplace(content, token.id).first;
  if (known->second != token.id) {
    fields_.fail("an added token has two ids: {} is {} and {}", shown(content), known->second, token.id);
  }
  if (const auto other = contents_.emplace(token.id, content).first; other->second != content) {
    fields_.fail("two tokens have the id {}: {} and {}", token.id, shown(other->second), shown(content));
  }
  const auto place = places_.emplace(token.id, added_.size());
  if (place.second) added_.emplace_back();
  token.content = content;
  added_[place.first->second] = std::move(token);
}

void TokenNames::add(const Json& entry, int32_t id) {
  constexpr std::string_view kWhere = "an added token";
  const std::string& content = fields_.text(entry, "content", kWhere);
  AddedToken token;
  token.id = id;
  token.special = fields_.flag(entry, "special", false, kWhere);
  token.single_word = fields_.flag(entry, "single_word", false, kWhere);
  token.strip_left = fields_.flag(entry, "lstrip", false, kWhere);
  token.strip_right = fields_.flag(entry, "rstrip", false, kWhere);
  token.normalized = fields_.flag(entry, "normalized", !token.special, kWhere);
  add(std::move(token), content);
}

void TokenNames::read_config(const Json& config, Around& around) {
  if (const Json* const known = fields_.member(config, "added_tokens_decoder"); known != nullptr && known->is_object()) {
    for (const auto& [number, entry] : known->get_ref<const Json::object_t&>()) {
      if (!entry.is_object() || number.empty() || number.size() > 7 ||
          !std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        fields_.fail("{} has an added token that cannot be read: {}", kConfig, shown(number));
      }
      add(entry, fields_.id(std::stol(number), kConfig));
    }
  }
  around.bos = named(config, "bos_token");
  around.eos = named(config, "eos_token");
  put_around(config, "add_bos_token", "bos_token", around.bos, around.before);
  put_around(config, "add_eos_token", "eos_token", around.eos, around.after);
}

/// A special token by the name that the config gives it: a text, or an object with "content".
std::optional<int32_t> TokenNames::named(const Json& config, const char* key) const {
  const Json* const value = fields_.member(config, key);
  if (value == nullptr) return std::nullopt;
  const std::string& content = value->is_object() ? fields_.text(*value, "content", key) : fields_.text(config, key, kConfig);
  const auto id = find(content);
  if (!id) fields_.fail("{} names a {} that is no token: {}", kConfig, key, shown(content));
  return id;
}

/// The config says whether a token is among those around the text.
void TokenNames::put_around(const Json& config, const char* flag, const char* name, std::optional<int32_t> token,
                            std::vector<int32_t>& around) const {
  const Json* const add = fields_.member(config, flag);
  if (add == nullptr || !add->is_boolean()) return;
  const bool wanted = add->get<bool>();
  if (!token) {
    if (wanted) fields_.fail("{} asks to add a {} and names none", kConfig, name);
    return;
  }
  const bool there = std::find(around.begin(), around.end(), *token) != around.end();
  if (wanted && !there) {
    around.insert(std::string_view(name) == "bos_token" ? around.begin() : around.end(), *token);
  } else if (!wanted) {
    std::erase(around, *token);
  }
}

}  // namespace weft

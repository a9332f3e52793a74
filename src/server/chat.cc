#include "server/chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace weft {
namespace {

using ordered_json = nlohmann::ordered_json;

/// Characters that no text should have.
constexpr uint32_t kFirstMark = 0xfdd0, kLastMark = 0xfdef;

std::string utf8(uint32_t code) {
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

/// Whether `text` is anywhere in a value, keys included.
bool holds(const ordered_json& value, const std::string& text) {
  if (value.is_string()) return value.get_ref<const std::string&>().find(text) != std::string::npos;
  if (value.is_object()) {
    for (const auto& [key, child] : value.items())
      if (key.find(text) != std::string::npos || holds(child, text)) return true;
    return false;
  }
  return value.is_array() &&
         std::any_of(value.begin(), value.end(), [&](const ordered_json& child) { return holds(child, text); });
}

/// A mark that is nowhere in the chat.
std::string unused_mark(const ChatMessages& chat) {
  for (uint32_t code = kFirstMark; code <= kLastMark; ++code) {
    const std::string mark = utf8(code);
    if (!holds(chat.messages, mark) && !holds(chat.tools, mark) && !holds(chat.kwargs, mark)) return mark;
  }
  throw ApiError(400, "messages hold all of the characters U+FDD0 to U+FDEF, which are no text", "messages");
}

/// A value in which no text spells a special token, nor do texts of a list together.
ordered_json broken(const ordered_json& value, const Tokenizer& tokenizer, const std::string& mark) {
  if (value.is_string()) return tokenizer.break_special(value.get_ref<const std::string&>(), mark);
  if (value.is_object()) {
    ordered_json out = ordered_json::object();
    for (const auto& [key, child] : value.items())
      out.push_back({tokenizer.break_special(key, mark), broken(child, tokenizer, mark)});
    return out;
  }
  if (!value.is_array()) return value;
  ordered_json out = ordered_json::array();
  for (const ordered_json& child : value) out.push_back(broken(child, tokenizer, mark));
  return out;
}

/// A message likewise. Its role is a plain word. Templates may write the parts of a content one behind the other.
ordered_json broken_message(const ordered_json& message, const Tokenizer& tokenizer, const std::string& mark) {
  ordered_json out = broken(message, tokenizer, mark);
  out["role"] = message["role"];
  if (!out.contains("content") || !out["content"].is_array()) return out;
  bool first = true;
  for (ordered_json& part : out["content"]) {
    if (!std::exchange(first, false)) part["text"] = mark + part["text"].get<std::string>();
  }
  return out;
}

}  // namespace

PromptInput chat_prompt(const ChatMessages& chat, const RenderChat& render, const Tokenizer* tokenizer) {
  if (render == nullptr) {
    throw ApiError(
        400,
        "the model has no chat template: start the server with --chat-template FILE, or render the messages yourself and "
        "POST them to /v1/completions",
        "messages", "no_chat_template");
  }
  PromptInput out{.is_text = true, .text = {}, .ids = {}};
  ChatMessages marked = chat;
  if (tokenizer != nullptr) {
    out.mark = unused_mark(chat);
    for (ordered_json& message : marked.messages) message = broken_message(message, *tokenizer, out.mark);
    marked.tools = broken(chat.tools, *tokenizer, out.mark);
    for (auto& [name, value] : marked.kwargs.items()) value = broken(value, *tokenizer, out.mark);
  }
  try {
    out.text = render(marked);
  } catch (const ApiError&) {
    throw;
  } catch (const UserError& error) {
    throw ApiError(400, error.what(), "messages", "chat_template");
  }
  return out;
}

}  // namespace weft

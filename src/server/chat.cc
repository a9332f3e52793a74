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

std::string dump(const ordered_json& value) { return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

/// `prompt` as it is behind the text of the last message, which the answer continues.
std::string cut_behind(std::string prompt, const ordered_json& message) {
  std::string text;
  const ordered_json content = message.value("content", ordered_json());
  if (content.is_string()) text = content.get<std::string>();
  if (content.is_array() && !content.empty()) text = content.back()["text"].get<std::string>();
  text.resize(text.find_last_not_of(" \t\r\n") + 1);  // Templates trim.
  const size_t at = text.empty() ? std::string::npos : prompt.rfind(text);
  if (at == std::string::npos)
    throw UserError("continue_final_message needs a last message whose text the chat template shows");
  prompt.resize(at + text.size());
  return prompt;
}

}  // namespace

RenderChat render_with(std::unique_ptr<const ChatTemplate> chat_template) {
  if (chat_template == nullptr) return nullptr;
  const std::shared_ptr<const ChatTemplate> shared = std::move(chat_template);
  return [shared](const ChatMessages& chat) {
    const std::string messages = dump(chat.messages), tools = chat.tools.empty() ? "" : dump(chat.tools),
                      kwargs = dump(chat.kwargs);
    std::string prompt = shared->render({.messages = messages,
                                         .tools = tools,
                                         .add_generation_prompt = chat.add_generation_prompt,
                                         .kwargs = kwargs,
                                         .now = std::time(nullptr)});
    return chat.continue_final_message ? cut_behind(std::move(prompt), chat.messages.back()) : prompt;
  };
}

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

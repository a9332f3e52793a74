#include "server/chat.h"

#include <nlohmann/json.hpp>

namespace weft {
namespace {

using ordered_json = nlohmann::ordered_json;

/// Characters that no text should have.
constexpr uint32_t kFirstMark = 0xfdd0, kLastMark = 0xfdef;

std::string utf8(uint32_t code) {
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

/// Calls edit(text) for every text below `value`.
template <typename Edit>
void each_text(ordered_json& value, const Edit& edit) {
  if (value.is_string()) return edit(value.get_ref<std::string&>());
  if (!value.is_structured()) return;
  for (ordered_json& child : value) each_text(child, edit);
}

/// A mark that is nowhere in the messages.
std::string unused_mark(ordered_json& messages) {
  for (uint32_t code = kFirstMark; code <= kLastMark; ++code) {
    const std::string mark = utf8(code);
    bool used = false;
    each_text(messages, [&](const std::string& text) { used |= text.find(mark) != text.npos; });
    if (!used) return mark;
  }
  throw ApiError(400, "messages hold all of the characters U+FDD0 to U+FDEF, which are no text", "messages");
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
    out.mark = unused_mark(marked.messages);
    for (ordered_json& message : marked.messages) {
      for (auto& [name, value] : message.items()) {
        if (name != "role") each_text(value, [&](std::string& text) { text = tokenizer->break_special(text, out.mark); });
      }
    }
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

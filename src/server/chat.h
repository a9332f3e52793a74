#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/openai_api.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace weft {

/// The model's chat template: the prompt that messages make. Throws UserError for messages that it does not take.
using RenderChat = std::function<std::string(const ChatMessages&)>;

/// Renders with a template of the model or of a flag. Null if there is none.
RenderChat render_with(std::unique_ptr<const ChatTemplate> chat_template);

/// The prompt of a chat. What users wrote stays plain text, also where it spells a special token: only the template makes
/// those. `tokenizer` may be null. Throws ApiError where there is no template, or it refuses the messages.
PromptInput chat_prompt(const ChatMessages& chat, const RenderChat& render, const Tokenizer* tokenizer);

}  // namespace weft

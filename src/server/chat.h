#pragma once

#include <functional>
#include <string>

#include "server/openai_api.h"
#include "text/tokenizer.h"

namespace weft {

/// The model's chat template: the prompt that messages make. Throws UserError for messages that it does not take.
using RenderChat = std::function<std::string(const ChatMessages&)>;

/// The prompt of a chat. What users wrote stays plain text, also where it spells a special token: only the template makes
/// those. `tokenizer` may be null. Throws ApiError where there is no template, or it refuses the messages.
PromptInput chat_prompt(const ChatMessages& chat, const RenderChat& render, const Tokenizer* tokenizer);

}  // namespace weft

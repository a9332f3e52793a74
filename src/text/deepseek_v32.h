#pragma once

#include <string>

#include "text/jinja_value.h"

namespace weft {

/// DeepSeek-V3.2's own encoding of messages, for which its makers publish no template. `messages` is a list of dicts whose
/// content is text, `tools` a list or None. With `is_thinking`, the model is to think before it answers.
///
/// Tools stand in the first message if that is the system's, else in a system message put before all others. Reasoning is shown
/// after the last message of a user only. The prompt ends with the beginning of an answer wherever the last message leaves the
/// word to the model; the encoding knows no other way. An answer with "prefix": true stays open. Throws UserError for messages
/// that it does not allow.
///
/// Source: the encoding published with the model, in Python.
std::string deepseek_v32_prompt(jinja::Sandbox& box, const jinja::Value& messages, const jinja::Value& tools, bool is_thinking);

}  // namespace weft

#include "text/deepseek_v32.h"

#include <fmt/format.h>

#include <vector>

#include "base/check.h"
#include "text/jinja_json.h"
#include "text/jinja_operators.h"

namespace weft {
namespace {

using jinja::Dict;
using jinja::Sandbox;
using jinja::Value;

constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>", kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>", kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

// What the model was trained to read about its tools, word for word.
constexpr std::string_view kToolsBegin = R"(## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
)";
constexpr std::string_view kToolsEnd = "\n</functions>\n";
constexpr std::string_view kResponseFormat =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

class Encoder {
 public:
  Encoder(Sandbox& box, const Value& messages, bool is_thinking)
      : box_(box), messages_(messages.items()), is_thinking_(is_thinking) {
    for (int64_t i = 0; i < count(); ++i) {
      if (const auto role = role_of(i); role == "user" || role == "developer") last_user_ = i;
    }
  }

  std::string run(const Value& tools) {
    out_ = kBegin;
    if (tools.truth() && (count() == 0 || role_of(0) != "system")) write_tools(tools);
    for (int64_t i = 0; i < count(); ++i) {
      box_.step();
      write(i, i == 0 ? tools : Value());
    }
    return std::move(out_);
  }

 private:
  int64_t count() const { return static_cast<int64_t>(messages_.size()); }
  const Dict& message(int64_t i) const { return messages_[static_cast<size_t>(i)].as_dict(); }
  std::string_view role_of(int64_t i) const {
    const Value* const role = message(i).find("role");
    return role != nullptr && role->is_string() ? std::string_view(role->as_string()) : "";
  }
  static std::string_view text(const Dict& of, std::string_view name) {
    const Value* const value = of.find(name);
    return value != nullptr && value->is_string() ? std::string_view(value->as_string()) : "";
  }
  /// The calls of a message; none if it has none.
  static std::vector<Value> calls(const Dict& of) {
    const Value* const value = of.find("tool_calls");
    return value != nullptr && value->is_sequence() ? value->items() : std::vector<Value>();
  }

  void write(int64_t i, const Value& tools) {
    const std::string_view role = role_of(i);
    if (role == "system") {
      out_ += text(message(i), "content");
      write_tools(tools);
      write_own_extras(message(i));
    } else if (role == "developer") {
      write_developer(i);
    } else if (role == "user") {
      out_ += kUser;
      out_ += text(message(i), "content");
      out_ += kAssistant;
      leave_to_model(i == last_user_);
    } else if (role == "tool") {
      write_result(i);
    } else if (role == "assistant") {
      write_answer(i);
    } else {
      throw UserError(
          "a message has a role that DeepSeek-V3.2 does not know: message {}, role \"{}\", allowed system, developer, user, "
          "assistant, tool",
          i, role.substr(0, 80));
    }
  }

  void leave_to_model(bool may_think) { out_ += may_think && is_thinking_ ? kThink : kThinkEnd; }

  /// "## Tools" with the functions, after an empty line.
  void write_tools(const Value& tools) {
    if (!tools.truth()) return;
    out_ += "\n\n";
    out_ += kToolsBegin;
    bool first = true;
    for (const Value& tool : tools.items()) {
      const Value* const function = tool.is_dict() ? tool.as_dict().find("function") : nullptr;
      if (function == nullptr) throw UserError("a tool has no \"function\": {}", jinja::to_json(box_, tool).substr(0, 200));
      if (!first) out_ += '\n';
      first = false;
      out_ += jinja::to_json(box_, *function);
    }
    out_ += kToolsEnd;
  }

  /// Tools and a response format that a message itself has.
  void write_own_extras(const Dict& of) {
    if (const Value* const tools = of.find("tools"); tools != nullptr && tools->is_sequence()) write_tools(*tools);
    if (const Value* const format = of.find("response_format"); format != nullptr && format->truth()) {
      out_ += "\n\n";
      out_ += kResponseFormat;
      out_ += jinja::to_json(box_, *format);
    }
  }

  void write_developer(int64_t i) {
    const std::string_view content = text(message(i), "content");
    if (content.empty()) throw UserError("a developer's message is empty: message {}", i);
    out_ += kUser;
    write_own_extras(message(i));
    out_ += "\n\n# The user's message is: ";
    out_ += content;
    out_ += kAssistant;
    leave_to_model(i == last_user_);
  }

  void write_result(int64_t i) {
    int64_t asked = i - 1;
    while (asked >= 0 && role_of(asked) == "tool") --asked;
    const auto expected = asked >= 0 && role_of(asked) == "assistant" ? static_cast<int64_t>(calls(message(asked)).size()) : 0;
    const int64_t order = i - asked;
    if (order > expected) {
      throw UserError("a tool's result answers no call: message {}, result {} of {} calls", i, order, expected);
    }
    if (order == 1) out_ += "\n\n<function_results>";
    out_ += "\n<result>";
    out_ += text(message(i), "content");
    out_ += "</result>";
    if (order != expected) return;
    out_ += "\n</function_results>\n\n";
    leave_to_model(i >= last_user_);
  }

  void write_answer(int64_t i) {
    const Dict& of = message(i);
    const std::vector<Value> tool_calls = calls(of);
    // The beginning of an answer, which the model goes on with.
    if (const Value* const prefix = of.find("prefix"); prefix != nullptr && prefix->truth() && tool_calls.empty()) {
      out_ += text(of, "content");
      return;
    }
    if (is_thinking_ && i > last_user_) {
      const std::string_view reasoning = text(of, "reasoning_content");
      if (reasoning.empty() && tool_calls.empty()) {
        throw UserError(
            "with thinking, an answer after the last message of the user needs reasoning_content or tool_calls: message {}", i);
      }
      out_ += reasoning;
      out_ += kThinkEnd;
    }
    out_ += text(of, "content");
    if (!tool_calls.empty()) {
      out_ += "\n\n<｜DSML｜function_calls>\n";
      for (const Value& call : tool_calls) write_call(call);
      out_ += "</｜DSML｜function_calls>";
    }
    out_ += kEnd;
  }

  void write_call(const Value& call) {
    const Value* const function = call.is_dict() ? call.as_dict().find("function") : nullptr;
    if (function == nullptr || !function->is_dict()) throw UserError("a tool call has no \"function\"");
    out_ += fmt::format("<｜DSML｜invoke name=\"{}\">\n", text(function->as_dict(), "name"));
    const Value* const arguments = function->as_dict().find("arguments");
    if (arguments != nullptr && arguments->is_dict()) {
      for (const auto& [name, value] : arguments->as_dict().entries()) {
        out_ += fmt::format("<｜DSML｜parameter name=\"{}\" string=\"{}\">", jinja::str(box_, name), value.is_string());
        out_ += value.is_string() ? value.as_string() : jinja::to_json(box_, value);
        out_ += "</｜DSML｜parameter>\n";
      }
    }
    // Without parameters there is an empty line between the tags.
    if (arguments == nullptr || !arguments->truth()) out_ += '\n';
    out_ += "</｜DSML｜invoke>\n";
  }

  Sandbox& box_;
  const std::vector<Value>& messages_;
  const bool is_thinking_;
  int64_t last_user_ = -1;
  std::string out_;
};

}  // namespace

std::string deepseek_v32_prompt(Sandbox& box, const Value& messages, const Value& tools, bool is_thinking) {
  return Encoder(box, messages, is_thinking).run(tools);
}

}  // namespace weft

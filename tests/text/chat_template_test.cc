#include "text/chat_template.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

/// One line for each message: role and content.
constexpr const char* kPlain = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}";
/// As Qwen's: reads arguments as text and as objects, and content only as text.
constexpr const char* kObjects = R"({% for m in messages %}<{{ m.role }}>{{ m.content + '' }}
{%- for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments if c.function.arguments is string else c.function.arguments|tojson }}]{% endfor %}
{% endfor %})";
/// As DeepSeek-V3's: calls show without content only, arguments are text.
constexpr const char* kTexts =
    R"({% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}[{{ c.function.name + ' ' + c.function.arguments }}]{% endfor %}{% else %}{{ m.content + '' }}{% endif %};{% endfor %})";
/// Walks over arguments, and over the parts of content.
constexpr const char* kWalks =
    R"({% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}
{%- for c in m.tool_calls or [] %}[{{ c.function.name }}{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}]{% endfor %};{% endfor %})";

std::string rendered(const char* source, std::string_view messages, std::string_view tools = "", std::string_view kwargs = "",
                     std::string_view config = "") {
  return ChatTemplate::parse(source, config)->render({.messages = messages, .tools = tools, .kwargs = kwargs});
}

std::string call(std::string_view content, std::string_view arguments) {
  return fmt::format(
      R"([{{"role": "assistant", "content": {}, "tool_calls": [{{"id": "1", "type": "function", "function": {{"name": "f", "arguments": {}}}}}]}}])",
      content, arguments);
}

TEST(ChatTemplate, VariablesOfTransformersAreThere) {
  const std::string config = R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": null})";
  const char* const source =
      "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ "
      "enable_thinking }}{{ messages|length }}";
  EXPECT_EQ(rendered(source, "[]", "", R"({"enable_thinking": false})", config), "<s></s>FalseNoneNoneTrueFalse0");
  EXPECT_EQ(
      ChatTemplate::parse(source)->render({.messages = "[]", .tools = R"([{"b": 1, "a": 2}])", .add_generation_prompt = false}),
      "False[{'b': 1, 'a': 2}]NoneFalse0");
  EXPECT_EQ(rendered("{{ messages|length }}{{ bos_token }}", "[]", "", R"({"messages": 5, "bos_token": "B"})", config), "0B");
}

TEST(ChatTemplate, ContentBecomesTextWhereTheTemplateWantsText) {
  EXPECT_EQ(
      rendered(kPlain, R"([{"role": "user", "content": " hi "}, {"role": "assistant", "content": null}, {"role": "user"}])"),
      "user: hi\nassistant: \nuser: \n");
  const char* const parts =
      R"([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}])";
  EXPECT_EQ(rendered(kPlain, parts), "user: one\ntwo\n");
  EXPECT_EQ(rendered(kWalks, parts), "(one)(two);") << "a template that walks over parts gets them";
  EXPECT_EQ(rendered("{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}",
                     R"([{"role": "user", "content": "hi"}])"),
            "(hi)")
      << "and one that knows parts only gets a part";
}

TEST(ChatTemplate, ArgumentsAreWhatTheTemplateReads) {
  const std::string text = R"("{\"b\": 1, \"a\": \"é\"}")", object = R"({"b": 1, "a": "é"})";
  for (const char* const content : {"null", "\"\""}) {
    for (const std::string& arguments : {text, object}) {
      EXPECT_EQ(rendered(kObjects, call(content, arguments)), "<assistant>[f {\"b\": 1, \"a\": \"é\"}]");
      EXPECT_EQ(rendered(kTexts, call(content, arguments)), "[f {\"b\": 1, \"a\": \"é\"}];");
      EXPECT_EQ(rendered(kWalks, call(content, arguments)), "[f b=1 a=é];");
    }
  }
}

TEST(ChatTemplate, ArgumentsOfACutAnswerDoNotBreakTheConversation) {
  const std::string cut = R"("{\"a\": \"un")";
  EXPECT_EQ(rendered(kObjects, call("null", cut)), "<assistant>[f {\"a\": \"un]");
  EXPECT_EQ(rendered(kTexts, call("null", cut)), "[f {\"a\": \"un];");
  EXPECT_EQ(rendered(kWalks, call("null", cut)), "[f invalid_arguments={\"a\": \"un];");
  EXPECT_EQ(rendered(kWalks, call("null", "\"\"")), "[f];");
}

TEST(ChatTemplate, WhatIsNoConversationIsRefused) {
  const auto error = [](std::string_view messages, std::string_view tools = "", std::string_view kwargs = "") {
    try {
      return "no error, but " + rendered(kPlain, messages, tools, kwargs);
    } catch (const UserError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_THAT(error("{}"), HasSubstr("messages must be a list of objects, not dict"));
  EXPECT_THAT(error("[1]"), HasSubstr("messages[0] must be an object, not int"));
  EXPECT_THAT(error(R"([{"content": "x"}])"), HasSubstr("messages[0] must have a role"));
  EXPECT_THAT(error(R"([{"role": "user", "content": 5}])"),
              HasSubstr("messages[0].content must be a text, a list of parts or null, not int"));
  EXPECT_THAT(error(R"([{"role": "user", "content": [{"type": "image_url"}]}])"), HasSubstr("reads text only, not image_url"));
  EXPECT_THAT(error("[]", "5"), HasSubstr("tools must be a list"));
  EXPECT_THAT(error("[]", "", "[]"), HasSubstr("chat_template_kwargs must be an object"));
  EXPECT_THAT(error("[{]"), HasSubstr("messages: not JSON at byte 3"));
  EXPECT_THAT(error(std::string(5000, '[')), HasSubstr("nest too deeply"));
}

TEST(ChatTemplate, ATemplatesOwnRefusalKeepsItsWords) {
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('No tools here!') }}{% endif %}{% endfor %}");
  try {
    chat->render({.messages = R"([{"role": "tool", "content": "x"}])"});
    FAIL();
  } catch (const jinja::TemplateRaised& raised) {
    EXPECT_STREQ(raised.what(), "No tools here!");
  }
}

class ModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("chat_template_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::string render(std::string_view tools = "") const {
    return ChatTemplate::of_model(folder_)->render({.messages = "[]", .tools = tools});
  }
  std::filesystem::path folder_;
};

TEST_F(ModelFolder, HasItsTemplateInOneOfThreeFiles) {
  EXPECT_EQ(ChatTemplate::of_model(folder_), nullptr);
  write("chat_template.json", R"({"chat_template": "old"})");
  EXPECT_EQ(render(), "old");
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "{{ bos_token }}config"})");
  EXPECT_EQ(render(), "<s>config");
  write("chat_template.jinja", "{{ bos_token }}file");
  EXPECT_EQ(render(), "<s>file");
}

TEST_F(ModelFolder, MayHaveATemplateForTools) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(render(), "d");
  EXPECT_EQ(render("[]"), "d");
  EXPECT_EQ(render(R"([{"type": "function"}])"), "t");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_THROW(render(), UserError);
  write("tokenizer_config.json", R"({"chat_template": "{{"})");
  EXPECT_THROW(render(), jinja::TemplateError);
}

TEST_F(ModelFolder, CanBeGivenAnotherTemplate) {
  write("tokenizer_config.json", R"({"eos_token": "</s>", "chat_template": "own"})");
  write("mine.jinja", "mine{{ eos_token }}");
  EXPECT_EQ(ChatTemplate::chosen((folder_ / "mine.jinja").string(), folder_)->render({.messages = "[]"}), "mine</s>");
  EXPECT_THROW(ChatTemplate::chosen("no such thing", folder_), UserError);
}

// ---- DeepSeek-V3.2

std::string deepseek(std::string_view messages, std::string_view tools = "", std::string_view kwargs = "") {
  return ChatTemplate::chosen("deepseek-v3.2", "")->render({.messages = messages, .tools = tools, .kwargs = kwargs});
}
constexpr const char* kThinking = R"({"thinking": true})";

TEST(DeepSeekV32, TurnsEndAndThoughtsOfThePastAreGone) {
  const char* const turns = R"([{"role": "system", "content": "Help."}, {"role": "user", "content": "hello"},
      {"role": "assistant", "content": "Hi!", "reasoning_content": "thinking..."}, {"role": "user", "content": "1+1=?"}])";
  const std::string common =
      "<｜begin▁of▁sentence｜>Help.<｜User｜>hello<｜Assistant｜></"
      "think>Hi!<｜end▁of▁sentence｜><｜User｜>1+1=?<｜Assistant｜>";
  EXPECT_EQ(deepseek(turns), common + "</think>");
  EXPECT_EQ(deepseek(turns, "", kThinking), common + "<think>");
  EXPECT_EQ(deepseek(turns, "", R"({"enable_thinking": true})"), common + "<think>");
}

TEST(DeepSeekV32, CallsAndResultsKeepTheThoughtsOfTheTurn) {
  const char* const turn = R"([{"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": null, "reasoning_content": "Ask.", "tool_calls": [
        {"type": "function", "function": {"name": "get", "arguments": "{\"city\": \"Rome\", \"days\": 2, \"more\": [\"ü\"]}"}},
        {"type": "function", "function": {"name": "now", "arguments": "{}"}}]},
      {"role": "tool", "content": "sun"}, {"role": "tool", "content": "noon"}])";
  const std::string calls =
      "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n"
      "<｜DSML｜parameter name=\"city\" string=\"true\">Rome</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"more\" string=\"false\">[\"ü\"]</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>";
  const std::string results = "\n\n<function_results>\n<result>sun</result>\n<result>noon</result>\n</function_results>\n\n";
  const std::string begin = "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜>";
  EXPECT_EQ(deepseek(turn, "", kThinking), begin + "<think>Ask.</think>" + calls + results + "<think>");
  EXPECT_EQ(deepseek(turn), begin + "</think>" + calls + results + "</think>");
}

/// What the model reads about tools, with their functions one a line.
std::string tools_text(const std::string& functions) {
  return R"(

## Tools

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
)" + functions +
         "\n</functions>\n";
}

TEST(DeepSeekV32, ToolsStandInTheSystemMessage) {
  const char* const tools =
      R"([{"type": "function", "function": {"name": "a", "parameters": {}}}, {"type": "function", "function": {"name": "ö"}}])";
  const std::string shown = tools_text("{\"name\": \"a\", \"parameters\": {}}\n{\"name\": \"ö\"}");
  EXPECT_EQ(deepseek(R"([{"role": "system", "content": "Help."}, {"role": "user", "content": "x"}])", tools),
            "<｜begin▁of▁sentence｜>Help." + shown + "<｜User｜>x<｜Assistant｜></think>");
  EXPECT_EQ(deepseek(R"([{"role": "user", "content": "x"}])", tools, kThinking),
            "<｜begin▁of▁sentence｜>" + shown + "<｜User｜>x<｜Assistant｜><think>");
}

TEST(DeepSeekV32, AMessageMayBringItsOwnToolsAndFormat) {
  const std::string extras =
      R"("tools": [{"type": "function", "function": {"name": "a"}}], "response_format": {"type": "object", "n": 1.50})";
  const std::string shown = tools_text("{\"name\": \"a\"}") +
                            "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
                            "{\"type\": \"object\", \"n\": 1.5}";
  EXPECT_EQ(deepseek(R"([{"role": "system", "content": "Help.", )" + extras + R"(}, {"role": "user", "content": "x"}])"),
            "<｜begin▁of▁sentence｜>Help." + shown + "<｜User｜>x<｜Assistant｜></think>");
  EXPECT_EQ(deepseek(R"([{"role": "developer", "content": "Count.", )" + extras + "}]", "", kThinking),
            "<｜begin▁of▁sentence｜><｜User｜>" + shown + "\n\n# The user's message is: Count.<｜Assistant｜><think>");
}

TEST(DeepSeekV32, ThoughtsOfEarlierTurnsAreGoneAndCallsStay) {
  const char* const turns = R"([{"role": "system", "content": ""}, {"role": "user", "content": "One?"},
      {"role": "assistant", "content": "Look.", "reasoning_content": "old", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"x": "a\nb", "y": null, "z": true, "d": {"k": [1, 2.0]}}}}]},
      {"role": "tool", "content": "r1"},
      {"role": "assistant", "content": "First.", "reasoning_content": "old too"},
      {"role": "user", "content": "Two?"},
      {"role": "assistant", "content": "", "reasoning_content": "new", "tool_calls": [{"type": "function", "function": {"name": "g", "arguments": "{\"q\": \"\"}"}}]},
      {"role": "tool", "content": "r2"},
      {"role": "assistant", "content": "Second.", "reasoning_content": "newest"}])";
  const std::string begin = "<｜begin▁of▁sentence｜><｜User｜>One?<｜Assistant｜></think>";
  const std::string first =
      "Look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
      "<｜DSML｜parameter name=\"x\" string=\"true\">a\nb</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"y\" string=\"false\">null</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"z\" string=\"false\">true</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"d\" string=\"false\">{\"k\": [1, 2.0]}</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>"
      "\n\n<function_results>\n<result>r1</result>\n</function_results>\n\n</think>First.<｜end▁of▁sentence｜>"
      "<｜User｜>Two?<｜Assistant｜>";
  const std::string call =
      "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"g\">\n<｜DSML｜parameter name=\"q\" "
      "string=\"true\"></｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜function_calls><｜end▁of▁sentence｜>"
      "\n\n<function_results>\n<result>r2</result>\n</function_results>\n\n";
  EXPECT_EQ(deepseek(turns, "", kThinking),
            begin + first + "<think>new</think>" + call + "<think>newest</think>Second.<｜end▁of▁sentence｜>");
  EXPECT_EQ(deepseek(turns), begin + first + "</think>" + call + "</think>Second.<｜end▁of▁sentence｜>");
}

TEST(DeepSeekV32, APrefixStaysOpen) {
  const char* const turns =
      R"([{"role": "user", "content": "Code."}, {"role": "assistant", "content": "```python\n", "prefix": true}])";
  EXPECT_EQ(deepseek(turns), "<｜begin▁of▁sentence｜><｜User｜>Code.<｜Assistant｜></think>```python\n");
}

TEST(DeepSeekV32, WhatItCannotEncodeIsRefused) {
  EXPECT_THROW(deepseek(R"([{"role": "critic", "content": "x"}])"), UserError);
  EXPECT_THROW(deepseek(R"([{"role": "tool", "content": "x"}])"), UserError);
  EXPECT_THROW(deepseek(R"([{"role": "developer", "content": ""}])"), UserError);
  EXPECT_THROW(deepseek(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])", "", kThinking),
               UserError);
  EXPECT_THROW(deepseek("[]", "[5]"), UserError);
}

}  // namespace
}  // namespace weft

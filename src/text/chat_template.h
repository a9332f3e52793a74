#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_template.h"

namespace weft {

/// A conversation as a client of OpenAI's API sends it. All JSON.
struct Conversation {
  std::string_view messages;            ///< a list of objects with a role
  std::string_view tools = {};          ///< a list; empty or null: none
  bool add_generation_prompt = true;    ///< ends with the beginning of an answer
  std::string_view kwargs = {};         ///< an object: further variables of the template, such as enable_thinking
  std::optional<std::time_t> now = {};  ///< for templates that tell the date
};

/// Turns conversations into prompts, by the Jinja template of a model or by the message encoding of DeepSeek-V3.2.
///
/// What clients send is first put into the form that the template can read. Which form that is, is found out when the template
/// is loaded, by rendering small conversations in each form and looking for their words:
///  - Content that is a list of text parts stays a list if the template shows the parts of lists; else it becomes one text, the
///    parts on lines of their own. Text becomes a list of one part if the template shows lists only. Parts that are no text are
///    refused.
///  - Content null, or none at all, becomes "". Only with tool calls it is null (and "" is null too) if the template shows
///  calls
///    then only, as that of DeepSeek-V3.
///  - Arguments of tool calls, which clients send as JSON text, become the object that the text holds if the template shows
///    objects well, as those of Qwen and Llama; else they are text, as for DeepSeek-V3. A text that is no JSON object, of an
///    answer that was cut, is left as text where the template takes that, else it becomes {"invalid_arguments": text}.
///  - `reasoning` is known as `reasoning_content` too.
///
/// Immutable: any number of threads may use one object. A rendering is bounded as jinja::Limits says.
class ChatTemplate {
 public:
  /// The template of a model's folder: chat_template.jinja, or `chat_template` in tokenizer_config.json (a text, or a list with
  /// names, of which "tool_use" is for conversations with tools and "default" for others), or chat_template.json. Null if there
  /// is none. Throws UserError for what is there and wrong, SystemError for what cannot be read.
  static std::unique_ptr<const ChatTemplate> of_model(const std::filesystem::path& folder, const jinja::Limits& limits = {});
  /// What --chat-template says: "deepseek-v3.2", or a file with a template; the special tokens are those of the folder.
  static std::unique_ptr<const ChatTemplate> chosen(const std::string& name_or_file, const std::filesystem::path& folder,
                                                    const jinja::Limits& limits = {});
  /// From text already read. `config` is that of tokenizer_config.json, which may be empty.
  static std::unique_ptr<const ChatTemplate> parse(std::string_view source, std::string_view config = {},
                                                   const jinja::Limits& limits = {});
  static constexpr std::string_view kDeepSeekV32 = "deepseek-v3.2";

  ~ChatTemplate();

  /// Throws UserError for a conversation that is wrong, jinja::TemplateRaised with the template's own words where the template
  /// refuses it, jinja::TemplateError where it fails at it. Each is the client's to hear.
  std::string render(const Conversation& conversation) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace weft

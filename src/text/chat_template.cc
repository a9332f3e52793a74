#include "text/chat_template.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <sstream>

#include "text/deepseek_v32.h"
#include "text/jinja_json.h"
#include "text/jinja_operators.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using jinja::Dict;
using jinja::Limits;
using jinja::Sandbox;
using jinja::Template;
using jinja::Value;

std::string read_file(const fs::path& path) {
  constexpr uintmax_t kMost = 64 << 20;
  std::error_code error;
  if (const auto size = fs::file_size(path, error); error || size > kMost) {
    throw SystemError("cannot read a file: {}, {}", path.string(), error ? error.message() : "it is too large");
  }
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) throw SystemError("cannot read a file: {}", path.string());
  return text.str();
}

/// JSON from someone who may be wrong.
Value json(Sandbox& box, std::string_view text, std::string_view what) {
  try {
    return jinja::from_json(box, text);
  } catch (const jinja::OperationError& error) {
    throw UserError("{}: {}", what, error.what());
  }
}

const Value* member(const Value& object, std::string_view name) {
  return object.is_dict() ? object.as_dict().find(name) : nullptr;
}

bool is_text(const Value* value) { return value != nullptr && value->is_string(); }

// ---- What a model's files say

/// The templates of a model by their names; one without a name is "default".
using Sources = std::map<std::string, std::string>;

Sources sources_in(const Value& config, std::string_view file) {
  const Value* const given = member(config, "chat_template");
  if (given == nullptr || given->is_none()) return {};
  if (given->is_string()) return {{"default", given->as_string()}};
  Sources sources;
  const auto wrong = [&] {
    return UserError("{}: chat_template must be a text, or a list of objects with name and template", file);
  };
  if (!given->is_sequence()) throw wrong();
  for (const Value& one : given->items()) {
    const Value *const name = member(one, "name"), *const source = member(one, "template");
    if (!is_text(name) || !is_text(source)) throw wrong();
    sources.emplace(name->as_string(), source->as_string());
  }
  return sources;
}

/// bos_token and its like, as transformers hands them to templates. JSON of an object.
std::string special_tokens(Sandbox& box, const Value& config) {
  const auto tokens = std::make_shared<Dict>(box);
  const auto content = [](const Value* token) {
    return is_text(token) ? token : token == nullptr ? nullptr : member(*token, "content");
  };
  for (const char* const name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const Value* const token = content(member(config, name));
    if (is_text(token)) tokens->set(box, Value::text(box, name), *token);
  }
  if (const Value* const more = member(config, "additional_special_tokens"); more != nullptr && more->is_sequence()) {
    std::vector<Value> texts;
    for (const Value& token : more->items()) {
      if (is_text(content(&token))) texts.push_back(*content(&token));
    }
    tokens->set(box, Value::text(box, "additional_special_tokens"), Value::list(box, std::move(texts)));
  }
  return jinja::to_json(box, Value::dict(tokens));
}

// ---- The form that a template reads

/// See ChatTemplate.
struct Form {
  bool shows_text = true, shows_parts = false;  ///< of content
  bool calls_without_content = false;           ///< tool calls show only if the content is null
  bool argument_objects = true, argument_texts = false;
};

constexpr std::string_view kWord = "weft-probe-word", kFunction = "weft_probe_function", kName = "weft_probe_name",
                           kArgument = "weft-probe-argument";

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// Renders small conversations in each form and looks for their words.
class Probe {
 public:
  Probe(const Template& parsed, const std::string& tokens, const Limits& limits)
      : parsed_(parsed), tokens_(tokens), limits_(limits) {}

  Form run() const {
    Form form;
    form.shows_text = shows_content(fmt::format(R"("{}")", kWord));
    form.shows_parts = shows_content(fmt::format(R"([{{"type": "text", "text": "{}"}}])", kWord));
    if (!form.shows_text && !form.shows_parts) form.shows_text = true;
    // In the order in which the forms are liked.
    for (const bool without : {false, true}) {
      const bool objects = shows_call(without, true), texts = shows_call(without, false);
      if (!objects && !texts) continue;
      form.calls_without_content = without;
      form.argument_objects = objects;
      form.argument_texts = texts;
      break;
    }
    return form;
  }

 private:
  /// Empty where the template fails.
  std::string shown(const std::string& messages, const std::string& tools) const {
    try {
      Sandbox box(limits_);
      Template::Variables variables;
      const Value tokens = jinja::from_json(box, tokens_);
      for (const auto& [name, value] : tokens.as_dict().entries()) variables.emplace_back(name.as_string(), value);
      variables.emplace_back("messages", jinja::from_json(box, messages));
      variables.emplace_back("tools", jinja::from_json(box, tools));
      variables.emplace_back("documents", Value());
      variables.emplace_back("add_generation_prompt", Value::boolean(true));
      return parsed_.render(box, variables, 0);
    } catch (const UserError&) {
      return {};
    }
  }

  /// The words are there, and nothing of how Python or JSON writes a list.
  bool shows_content(const std::string& content) const {
    const std::string text = shown(fmt::format(R"([{{"role": "user", "content": {}}}])", content), "null");
    return has(text, kWord) && !has(text, "'text'") && !has(text, "\"text\"");
  }

  bool shows_call(bool without_content, bool object) const {
    const std::string argument = fmt::format(R"({{"{}": "{}"}})", kName, kArgument);
    const std::string as_text = fmt::format(R"("{{\"{}\": \"{}\"}}")", kName, kArgument);
    const std::string messages = fmt::format(
        R"([{{"role": "user", "content": "hi"}}, {{"role": "assistant", "content": {}, "tool_calls": [{{"type": "function", "id": "call00001", "function": {{"name": "{}", "arguments": {}}}}}]}}])",
        without_content ? "null" : "\"\"", kFunction, object ? argument : as_text);
    const std::string text = shown(messages, "null");
    // Neither as Python writes a dict, nor as JSON writes a text that is JSON.
    return has(text, kFunction) && has(text, kName) && has(text, kArgument) && !has(text, fmt::format("'{}'", kName)) &&
           !has(text, fmt::format("\\\"{}", kName));
  }

  const Template& parsed_;
  const std::string& tokens_;
  const Limits& limits_;
};

/// Puts messages into the form that a template reads.
class Normalizer {
 public:
  Normalizer(Sandbox& box, const Form& form) : box_(box), form_(form) {}

  Value run(const Value& messages) {
    if (!messages.is_sequence()) throw UserError("messages must be a list of objects, not {}", messages.type_name());
    std::vector<Value> normal;
    for (const Value& one : messages.items()) {
      if (!one.is_dict()) throw UserError("messages[{}] must be an object, not {}", normal.size(), one.type_name());
      if (!is_text(member(one, "role"))) throw UserError("messages[{}] must have a role, which is a text", normal.size());
      normal.push_back(message(one.as_dict(), normal.size()));
    }
    return Value::list(box_, std::move(normal));
  }

 private:
  Value message(const Dict& given, size_t index) {
    const auto normal = std::make_shared<Dict>(box_);
    const Value* const calls = given.find("tool_calls");
    const bool has_calls = calls != nullptr && calls->is_sequence() && !calls->items().empty();
    for (const auto& [name, value] : given.entries()) {
      if (name.as_string() == "tool_calls" && has_calls) {
        normal->set(box_, name, tool_calls(*calls, index));
      } else {
        normal->set(box_, name, value);
      }
    }
    const Value* const said = given.find("content");
    normal->set(box_, Value::text(box_, "content"), content(said == nullptr ? Value() : *said, has_calls, index));
    if (is_text(given.find("reasoning")) && given.find("reasoning_content") == nullptr) {
      normal->set(box_, Value::text(box_, "reasoning_content"), *given.find("reasoning"));
    }
    return Value::dict(normal);
  }

  Value content(const Value& given, bool has_calls, size_t index) {
    if (!given.is_none() && !given.is_string() && !given.is_sequence()) {
      throw UserError("messages[{}].content must be a text, a list of parts or null, not {}", index, given.type_name());
    }
    if (given.is_sequence()) return parts(given, index);
    if (has_calls && form_.calls_without_content && !given.truth()) return {};
    const Value text = given.is_none() ? Value::text(box_, "") : given;
    if (form_.shows_text) return text;
    const auto part = std::make_shared<Dict>(box_);
    part->set(box_, Value::text(box_, "type"), Value::text(box_, "text"));
    part->set(box_, Value::text(box_, "text"), text);
    return Value::list(box_, {Value::dict(part)});
  }

  Value parts(const Value& given, size_t index) {
    std::string text;
    size_t number = 0;
    for (const Value& part : given.items()) {
      const Value *const type = member(part, "type"), *const words = member(part, "text");
      if (!is_text(type) || type->as_string() != "text" || !is_text(words)) {
        throw UserError(
            "messages[{}].content[{}] must be {{\"type\": \"text\", \"text\": ...}}: this model reads text only, not {}", index,
            number, is_text(type) ? type->as_string().substr(0, 80) : part.type_name());
      }
      if (number++ != 0) text += '\n';
      box_.step_bytes(words->as_string().size());
      text += words->as_string();
    }
    return form_.shows_parts ? given : Value::text(box_, std::move(text));
  }

  Value tool_calls(const Value& given, size_t index) {
    std::vector<Value> calls;
    for (const Value& call : given.items()) {
      const Value* const function = member(call, "function");
      if (function == nullptr || !function->is_dict()) {
        throw UserError("messages[{}].tool_calls[{}] must have a function, which is an object", index, calls.size());
      }
      const auto normal_function = std::make_shared<Dict>(box_);
      for (const auto& [name, value] : function->as_dict().entries()) normal_function->set(box_, name, value);
      const Value* const said = function->as_dict().find("arguments");
      normal_function->set(box_, Value::text(box_, "arguments"), arguments(said == nullptr ? Value() : *said));
      const auto normal = std::make_shared<Dict>(box_);
      for (const auto& [name, value] : call.as_dict().entries()) normal->set(box_, name, value);
      normal->set(box_, Value::text(box_, "function"), Value::dict(normal_function));
      calls.push_back(Value::dict(normal));
    }
    return Value::list(box_, std::move(calls));
  }

  Value arguments(const Value& given) {
    if (!form_.argument_objects) {
      return given.is_string() ? given : Value::text(box_, given.is_none() ? "{}" : jinja::to_json(box_, given));
    }
    if (!given.is_string()) return given.is_none() ? Value::dict(std::make_shared<Dict>(box_)) : given;
    if (given.as_string().empty()) return Value::dict(std::make_shared<Dict>(box_));
    if (auto object = object_in(given.as_string())) return *object;
    if (form_.argument_texts) return given;
    const auto wrapped = std::make_shared<Dict>(box_);
    wrapped->set(box_, Value::text(box_, "invalid_arguments"), given);
    return Value::dict(wrapped);
  }

  std::optional<Value> object_in(const std::string& text) {
    try {
      Value value = jinja::from_json(box_, text);
      if (value.is_dict()) return value;
    } catch (const jinja::OperationError&) {  // It is no JSON; or too much, which the next step finds out.
      box_.step();
    }
    return {};
  }

  Sandbox& box_;
  const Form& form_;
};

}  // namespace

struct ChatTemplate::Parts {
  struct Named {
    Template parsed;
    Form form;
  };

  Limits limits;
  std::string tokens = "{}";  ///< JSON
  bool is_deepseek_v32 = false;
  std::map<std::string, Named> templates;

  const Named& choice(bool has_tools) const {
    const auto for_tools = templates.find("tool_use");
    return has_tools && for_tools != templates.end() ? for_tools->second : templates.at("default");
  }

  void add(const Sources& sources, std::string_view where) {
    if (!sources.contains("default")) throw UserError("{}: no chat template is named \"default\"", where);
    for (const auto& [name, source] : sources) {
      Template parsed = Template::parse(source, limits);
      const Form form = Probe(parsed, tokens, limits).run();
      templates.emplace(name, Named{std::move(parsed), form});
    }
  }

  void read_tokens(std::string_view config) {
    if (config.empty()) return;
    Sandbox box{Limits{}};
    tokens = special_tokens(box, json(box, config, "tokenizer_config.json"));
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::~ChatTemplate() = default;

std::unique_ptr<const ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view config,
                                                        const Limits& limits) {
  auto parts = std::make_unique<Parts>();
  parts->limits = limits;
  parts->read_tokens(config);
  parts->add({{"default", std::string(source)}}, "the chat template");
  return std::unique_ptr<const ChatTemplate>(new ChatTemplate(std::move(parts)));
}

std::unique_ptr<const ChatTemplate> ChatTemplate::of_model(const fs::path& folder, const Limits& limits) {
  auto parts = std::make_unique<Parts>();
  parts->limits = limits;
  Sandbox box{Limits{}};
  Sources sources;
  std::string where = (folder / "tokenizer_config.json").string();
  if (fs::exists(folder / "tokenizer_config.json")) {
    const std::string config = read_file(folder / "tokenizer_config.json");
    parts->read_tokens(config);
    sources = sources_in(json(box, config, where), where);
  }
  if (const fs::path file = folder / "chat_template.jinja"; fs::exists(file)) {
    where = file.string();
    sources["default"] = read_file(file);
  } else if (const fs::path old = folder / "chat_template.json"; sources.empty() && fs::exists(old)) {
    where = old.string();
    sources = sources_in(json(box, read_file(old), where), where);
  }
  if (sources.empty()) return nullptr;
  parts->add(sources, where);
  return std::unique_ptr<const ChatTemplate>(new ChatTemplate(std::move(parts)));
}

std::unique_ptr<const ChatTemplate> ChatTemplate::chosen(const std::string& name_or_file, const fs::path& folder,
                                                         const Limits& limits) {
  if (name_or_file == kDeepSeekV32) {
    auto parts = std::make_unique<Parts>();
    parts->limits = limits;
    parts->is_deepseek_v32 = true;
    return std::unique_ptr<const ChatTemplate>(new ChatTemplate(std::move(parts)));
  }
  if (!fs::is_regular_file(name_or_file)) {
    throw UserError("--chat-template must be a file with a template, or {}: {}", kDeepSeekV32, name_or_file.substr(0, 200));
  }
  const fs::path config = folder / "tokenizer_config.json";
  return parse(read_file(name_or_file), fs::exists(config) ? read_file(config) : "", limits);
}

std::string ChatTemplate::render(const Conversation& conversation) const {
  Sandbox box(parts_->limits);
  try {
    const Value tools = conversation.tools.empty() ? Value() : json(box, conversation.tools, "tools");
    if (!tools.is_none() && !tools.is_sequence()) throw UserError("tools must be a list, not {}", tools.type_name());
    const Value given = json(box, conversation.messages, "messages");
    const Value kwargs = conversation.kwargs.empty() ? Value() : json(box, conversation.kwargs, "chat_template_kwargs");
    if (!kwargs.is_none() && !kwargs.is_dict())
      throw UserError("chat_template_kwargs must be an object, not {}", kwargs.type_name());
    if (parts_->is_deepseek_v32) {
      const Value messages = Normalizer(box, Form{}).run(given);
      const auto is_set = [&](std::string_view name) {
        const Value* const value = member(kwargs, name);
        return value != nullptr && value->truth();
      };
      return deepseek_v32_prompt(box, messages, tools, is_set("thinking") || is_set("enable_thinking"));
    }
    const Parts::Named& chosen = parts_->choice(tools.truth());
    // What comes later in the list hides what came before.
    const Value tokens = jinja::from_json(box, parts_->tokens);
    const auto all = std::make_shared<Dict>(box);
    for (const auto& [name, value] : tokens.as_dict().entries()) all->set(box, name, value);
    all->set(box, Value::text(box, "documents"), {});
    if (kwargs.is_dict()) {
      for (const auto& [name, value] : kwargs.as_dict().entries()) all->set(box, name, value);
    }
    all->set(box, Value::text(box, "messages"), Normalizer(box, chosen.form).run(given));
    all->set(box, Value::text(box, "tools"), tools.truth() ? tools : Value());
    all->set(box, Value::text(box, "add_generation_prompt"), Value::boolean(conversation.add_generation_prompt));
    Template::Variables variables;
    for (const auto& [name, value] : all->entries()) variables.emplace_back(name.as_string(), value);
    return chosen.parsed.render(box, variables, conversation.now);
  } catch (const jinja::OperationError& error) {
    throw UserError("the conversation is too large for its template: {}", error.what());
  }
}

}  // namespace weft

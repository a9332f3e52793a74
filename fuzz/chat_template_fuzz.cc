// Whatever a chat template and a conversation hold, the prompt is rendered or refused, inside the bounds and without a trace
// left in memory.

#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/jinja_json.h"

namespace {

constexpr weft::jinja::Limits kLimits = {.max_output_bytes = 1 << 18,
                                         .max_memory_bytes = 8 << 20,
                                         .max_steps = 100'000,
                                         .max_time = std::chrono::milliseconds(2000)};

const weft::ChatTemplate& deepseek() {
  static const auto one = weft::ChatTemplate::chosen(std::string(weft::ChatTemplate::kDeepSeekV32), "", kLimits);
  return *one;
}

/// The engine by itself: all memory comes back.
void render_alone(std::string_view source, std::string_view data) {
  weft::jinja::Sandbox box(kLimits);
  try {
    const auto parsed = weft::jinja::Template::parse(source, kLimits);
    const auto value = weft::jinja::from_json(box, data);
    if (parsed.render(box, {{"messages", value}}, 0).size() > kLimits.max_output_bytes) std::abort();
  } catch (const weft::UserError&) {
  } catch (const weft::jinja::OperationError&) {
  }
  if (box.taken() != 0) std::abort();
}

}  // namespace

/// A template, a zero byte, messages.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), size);
  const std::string_view source = input.substr(0, zero), messages = input.substr(std::min(zero + 1, size));
  render_alone(source, messages);
  try {
    deepseek().render({.messages = messages, .tools = messages, .kwargs = R"({"thinking": true})", .now = 0});
  } catch (const weft::UserError&) {
  }
  try {
    weft::ChatTemplate::parse(source, "", kLimits)->render({.messages = messages, .tools = messages, .now = 0});
  } catch (const weft::UserError&) {
  }
  return 0;
}

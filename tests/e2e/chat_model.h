#pragma once

#include <filesystem>

namespace weft::test {

/// Writes the folder of a model that chats nonsense: a config.json for --load-format dummy, a tokenizer of bytes, and a chat
/// template.
void write_chat_model(const std::filesystem::path& folder);

}  // namespace weft::test

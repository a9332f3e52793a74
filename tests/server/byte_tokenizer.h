#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace weft::test {

/// A tokenizer.json of bytes: id b is byte b, then come the tokens that `merges` make ("h e": "he"), in their order, and last
/// the special token "<|end|>".
nlohmann::json byte_tokenizer_json(const std::vector<std::string>& merges = {});

}  // namespace weft::test

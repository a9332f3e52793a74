#include "server/byte_tokenizer.h"

#include <algorithm>

namespace weft::test {

using nlohmann::json;

json byte_tokenizer_json(const std::vector<std::string>& merges) {
  // The characters that byte-level tokenizers write bytes as: printable ones as themselves, the others from U+0100 on.
  json vocabulary = json::object();
  const auto utf8 = [](int code) {
    return code < 0x80 ? std::string(1, static_cast<char>(code))
                       : std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  };
  int other = 0x100, id = 0;
  for (; id < 256; ++id) {
    const bool itself = (id >= '!' && id <= '~') || (id >= 0xa1 && id <= 0xac) || id >= 0xae;
    vocabulary[utf8(itself ? id : other++)] = id;
  }
  for (std::string merged : merges) {
    merged.erase(std::remove(merged.begin(), merged.end(), ' '), merged.end());
    vocabulary[merged] = id++;
  }
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const json end = {{"id", id},        {"content", "<|end|>"}, {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false},  {"special", true}};
  return {{"version", "1.0"},
          {"added_tokens", json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

}  // namespace weft::test

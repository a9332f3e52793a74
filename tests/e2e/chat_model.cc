#include "e2e/chat_model.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace weft::test {
namespace {

using nlohmann::json;

/// "<|end|>" and a vocabulary of the 256 bytes, written as byte-level tokenizers write them.
json byte_tokenizer() {
  json vocabulary = json::object();
  const auto utf8 = [](int code) {
    return code < 0x80 ? std::string(1, static_cast<char>(code))
                       : std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  };
  int other = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    vocabulary[utf8(itself ? byte : other++)] = byte;
  }
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const json end = {{"id", 256},       {"content", "<|end|>"}, {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false},  {"special", true}};
  return {{"version", "1.0"},
          {"added_tokens", {end}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
}

}  // namespace

void write_chat_model(const std::filesystem::path& folder) {
  std::ofstream(folder / "config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 52,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 257,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 1024, "tie_word_embeddings": false,
        "torch_dtype": "float32", "hidden_act": "silu", "eos_token_id": 256})";
  std::ofstream(folder / "tokenizer.json") << byte_tokenizer().dump();
  const std::string chat_template =
      "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
      "{{ eos_token + message.role + ': ' + message.content }}{% endfor %}"
      "{% if add_generation_prompt %}{{ eos_token + 'assistant: ' }}{% endif %}";
  std::ofstream(folder / "tokenizer_config.json") << json{{"eos_token", "<|end|>"}, {"chat_template", chat_template}}.dump();
}

}  // namespace weft::test

#include "e2e/chat_model.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "server/byte_tokenizer.h"

namespace weft::test {

void write_chat_model(const std::filesystem::path& folder) {
  std::ofstream(folder / "config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 52,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 257,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 1024, "tie_word_embeddings": false,
        "torch_dtype": "float32", "hidden_act": "silu", "eos_token_id": 256})";
  std::ofstream(folder / "tokenizer.json") << byte_tokenizer_json().dump();
  const std::string chat_template =
      "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
      "{{ eos_token + message.role + ': ' + message.content }}{% endfor %}"
      "{% if add_generation_prompt %}{{ eos_token + 'assistant: ' }}{% endif %}";
  std::ofstream(folder / "tokenizer_config.json")
      << nlohmann::json{{"eos_token", "<|end|>"}, {"chat_template", chat_template}}.dump();
}

}  // namespace weft::test

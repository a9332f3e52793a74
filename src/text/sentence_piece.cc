#include "text/sentence_piece.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "text/byte_pair_model.h"
#include "text/json_fields.h"
#include "text/normalizer.h"
#include "text/sentence_piece_model.h"
#include "text/token_names.h"

namespace weft {
namespace {

using Json = JsonFields::Json;

// Those whose ids are the model's own. Others shift them, or put other tokens around a text.
constexpr std::array<std::string_view, 6> kClasses = {"LlamaTokenizer",         "LlamaTokenizerFast", "CodeLlamaTokenizer",
                                                      "CodeLlamaTokenizerFast", "GemmaTokenizer",     "GemmaTokenizerFast"};

class Reader : private JsonFields {
 public:
  Reader(const SentencePieceFiles& files, std::string_view path) : JsonFields(path), names_(*this) {
    const auto read = [&](std::string_view text, const char* what) {
      return text.empty() ? Json(Json::object()) : parsed(text, what);
    };
    config_ = read(files.config, "tokenizer_config.json");
    special_ = read(files.special_tokens_map, "special_tokens_map.json");
    added_ = read(files.added_tokens, "added_tokens.json");
    check_class();
    model_ = std::make_unique<SentencePieceModel>(files.model, prefix(), path);
  }

  TokenizerFile run() {
    for (int32_t id = 0; id < model_->size(); ++id) {
      if (!names_.take(id, model_->piece(id))) fail("two pieces have the id {}", id);
      if (model_->is_control(id) || model_->is_unknown(id)) add(id, model_->piece(id));
    }
    for (const auto& [content, number] : added_.get_ref<const Json::object_t&>()) {
      names_.add({.id = id(number, "added_tokens.json"), .normalized = true}, content);
    }
    complete_config();
    names_.read_config(config_, around_);
    read_special_tokens();
    return build();
  }

 private:
  void check_class() const {
    if (member(config_, "tokenizer_class") == nullptr) return;
    const std::string& name = text(config_, "tokenizer_class", "tokenizer_config.json");
    if (std::find(kClasses.begin(), kClasses.end(), name) == kClasses.end()) {
      unsupported("tokenizer_class with a tokenizer.model", name,
                  fmt::format("{}, or a tokenizer.json", fmt::join(kClasses, ", ")));
    }
  }

  SentencePieceModel::Prefix prefix() const {
    constexpr std::string_view kWhere = "tokenizer_config.json";
    if (flag(config_, "legacy", true, kWhere)) return SentencePieceModel::Prefix::as_trained;
    return flag(config_, "add_prefix_space", true, kWhere) ? SentencePieceModel::Prefix::first
                                                           : SentencePieceModel::Prefix::never;
  }

  void add(int32_t id, std::string_view content) { names_.add({.id = id, .special = true}, content); }

  /// Where tokenizer_config.json is silent, special_tokens_map.json speaks, and then the model.
  void complete_config() {
    const auto complete = [&](const char* name, std::optional<int32_t> own) {
      if (config_.contains(name)) return;
      if (member(special_, name) != nullptr) {
        config_[name] = special_[name];
      } else if (own) {
        config_[name] = model_->piece(*own);
      }
    };
    complete("bos_token", model_->bos());
    complete("eos_token", model_->eos());
    if (!config_.contains("add_bos_token")) config_["add_bos_token"] = member(config_, "bos_token") != nullptr;
  }

  /// Tokens that special_tokens_map.json names are special. Those that no model writes may have no id.
  void read_special_tokens() {
    for (const char* const name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
      if (const Json* const token = member(special_, name)) make_special(*token, false);
    }
    if (member(special_, "additional_special_tokens") == nullptr) return;
    for (const Json& token : list(special_, "additional_special_tokens", "special_tokens_map.json")) make_special(token, true);
  }

  void make_special(const Json& token, bool needs_id) {
    constexpr std::string_view kWhere = "a token of special_tokens_map.json";
    if (!token.is_object() && !token.is_string()) fail("{} is neither a text nor an object", kWhere);
    const std::string& content = token.is_object() ? text(token, "content", kWhere) : token.get_ref<const std::string&>();
    const auto id = names_.find(content);
    if (!id && needs_id) fail("{} has no id: {}", kWhere, shown(content));
    if (!id) return;
    const auto known =
        std::find_if(names_.added().begin(), names_.added().end(), [&](const AddedToken& one) { return one.id == *id; });
    if (known == names_.added().end()) {
      add(*id, content);
    } else {
      known->special = true;
    }
  }

  TokenizerFile build() {
    TokenizerFile file;
    for (int32_t id = 0; id < model_->size(); ++id) {
      const auto byte = model_->byte(id);
      file.bytes.push_back(byte ? std::string(1, static_cast<char>(*byte)) : replaced(model_->piece(id), kSpaceMark, " "));
    }
    for (const AddedToken& token : names_.added()) {
      if (static_cast<size_t>(token.id) >= file.bytes.size()) file.bytes.resize(token.id + 1);
      file.bytes[token.id] = token.content;
    }
    file.added_tokens = std::move(names_.added());
    file.before = std::move(around_.before);
    file.after = std::move(around_.after);
    file.bos = around_.bos;
    file.eos = around_.eos;
    file.drops_first_space = model_->adds_space();
    file.model = std::move(model_);
    return file;
  }

  Json config_, special_, added_;
  std::unique_ptr<SentencePieceModel> model_;
  TokenNames names_;  ///< the texts are the model's and those of the JSON
  TokenNames::Around around_;
};

}  // namespace

TokenizerFile read_sentence_piece(const SentencePieceFiles& files, std::string_view path) { return Reader(files, path).run(); }

}  // namespace weft

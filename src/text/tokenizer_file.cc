#include "text/tokenizer_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

#include "base/check.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int kMostNestedStages = 8;
constexpr size_t kMostStages = 32;
constexpr int64_t kGreatestId = (1 << 22) - 1;  // ids index a table; the largest vocabularies are below 2^19

/// Untrusted text for a message: in quotes, printable, on one line, short.
std::string shown(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    out += c >= ' ' && c <= '~' ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

class Reader {
 public:
  Reader(std::string_view json, std::string_view config, std::string_view path) : path_(path) {
    root_ = parsed(json, "the tokenizer");
    if (!config.empty()) config_ = parsed(config, "tokenizer_config.json");
  }

  TokenizerFile run() {
    read_model(object(root_, "model", "the tokenizer"));
    read_added_tokens();
    read_normalizer(optional_object(root_, "normalizer"), 0);
    read_pre_tokenizer();
    read_post_processor(optional_object(root_, "post_processor"), 0);
    read_decoder();
    if (!config_.is_null()) read_config();
    return std::move(file_);
  }

 private:
  // What is wrong.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}, path {}", fmt::format(format, std::forward<Args>(args)...), path_);
  }
  [[noreturn]] void unsupported(std::string_view component, std::string_view found, std::string_view supported) const {
    fail("the tokenizer's {} is not supported: {}, supported: {}", component, shown(found), supported);
  }

  // Reading JSON of uncertain shape.
  Json parsed(std::string_view text, std::string_view what) const {
    try {
      Json json = Json::parse(text.begin(), text.end());
      if (!json.is_object()) fail("{} is not a JSON object", what);
      return json;
    } catch (const Json::parse_error& error) {
      fail("{} is not valid JSON: error at byte {} of {}", what, error.byte, text.size());
    } catch (const Json::out_of_range&) {
      fail("{} holds a number that is too large", what);
    }
  }
  const Json* member(const Json& parent, const char* key) const {
    const auto found = parent.find(key);
    return found == parent.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& object(const Json& parent, const char* key, std::string_view where) const {
    const Json* const found = member(parent, key);
    if (found == nullptr || !found->is_object()) fail("{} has no object \"{}\"", where, key);
    return *found;
  }
  const Json* optional_object(const Json& parent, const char* key) const {
    const Json* const found = member(parent, key);
    if (found != nullptr && !found->is_object()) fail("the tokenizer's {} is not an object", key);
    return found;
  }
  const Json& list(const Json& parent, const char* key, std::string_view where) const {
    const Json* const found = member(parent, key);
    if (found == nullptr || !found->is_array()) fail("{} has no list \"{}\"", where, key);
    return *found;
  }
  const std::string& text(const Json& parent, const char* key, std::string_view where) const {
    const Json* const found = member(parent, key);
    if (found == nullptr || !found->is_string()) fail("{} has no text \"{}\"", where, key);
    return found->get_ref<const std::string&>();
  }
  bool flag(const Json& parent, const char* key, bool otherwise, std::string_view where) const {
    const Json* const found = member(parent, key);
    if (found == nullptr) return otherwise;
    if (!found->is_boolean()) fail("{} has a \"{}\" that is neither true nor false", where, key);
    return found->get<bool>();
  }
  int32_t id(const Json& value, std::string_view where) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kGreatestId) {
      fail("{} has an id that is not a whole number from 0 to {}", where, kGreatestId);
    }
    return static_cast<int32_t>(value.get<int64_t>());
  }
  /// The members of a Sequence, which may nest.
  const Json& members(const Json& sequence, const char* key, int depth, std::string_view component) const {
    const Json& all = list(sequence, key, component);
    if (depth >= kMostNestedStages || all.size() > kMostStages) fail("the {} has too many stages", component);
    for (const Json& one : all) {
      if (!one.is_object()) fail("the {} has a stage that is no object", component);
    }
    return all;
  }

  void read_model(const Json& model) {
    const Json* const type = member(model, "type");
    if (type != nullptr && *type != "BPE") unsupported("model", type->is_string() ? type->get<std::string>() : "?", "BPE");
    for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* const affix = member(model, key);
      if (affix != nullptr && !(affix->is_string() && affix->get_ref<const std::string&>().empty()))
        unsupported(std::string("model.") + key, "not empty", "none");
    }
    if (const Json* dropout = member(model, "dropout"); dropout != nullptr && *dropout != 0) {
      unsupported("model.dropout", "not zero", "none");
    }
    if (flag(model, "byte_fallback", false, "the model")) unsupported("model.byte_fallback", "true", "false");
    file_.ignore_merges = flag(model, "ignore_merges", false, "the model");
    file_.fuse_unknown = flag(model, "fuse_unk", false, "the model");
    read_vocabulary(object(model, "vocab", "the model"));
    if (member(model, "unk_token") != nullptr) {
      file_.unknown = vocabulary_id(text(model, "unk_token", "the model"), "the model's unk_token");
    }
    read_merges(list(model, "merges", "the model"));
  }

  void read_vocabulary(const Json& vocabulary) {
    file_.vocabulary.reserve(vocabulary.size());
    ids_.reserve(vocabulary.size());
    contents_.reserve(vocabulary.size());
    for (const auto& [content, value] : vocabulary.get_ref<const Json::object_t&>()) {
      const int32_t number = id(value, "the vocabulary");
      if (!take(number, content)) fail("the vocabulary gives two tokens the id {}", number);
      file_.vocabulary.emplace_back(content, number);
      ids_.emplace(content, number);
    }
    if (file_.vocabulary.empty()) fail("the vocabulary is empty");
  }

  /// Marks an id as that of `content`; false if it is another's.
  bool take(int32_t number, std::string_view content) { return contents_.emplace(number, content).first->second == content; }
  int32_t vocabulary_id(std::string_view content, std::string_view where) const {
    const auto found = ids_.find(content);
    if (found == ids_.end()) fail("{} is not in the vocabulary: {}", where, shown(content));
    return found->second;
  }

  void read_merges(const Json& merges) {
    file_.merges.reserve(merges.size());
    std::string merged;
    for (const Json& merge : merges) {
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string_view both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
          fail("merge {} is not two tokens: {}", file_.merges.size(), shown(both));
        }
        left = both.substr(0, space), right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>(), right = merge[1].get_ref<const std::string&>();
      } else {
        fail("merge {} is neither a text nor a pair of texts", file_.merges.size());
      }
      merged.assign(left).append(right);
      file_.merges.push_back({.left = vocabulary_id(left, "a merge's left part"),
                              .right = vocabulary_id(right, "a merge's right part"),
                              .merged = vocabulary_id(merged, "a merge's result")});
    }
  }

  void read_added_tokens() {
    if (member(root_, "added_tokens") == nullptr) return;
    for (const Json& entry : list(root_, "added_tokens", "the tokenizer")) {
      if (!entry.is_object()) fail("an added token is no object");
      add_token(entry, entry.contains("id") ? id(entry["id"], "an added token") : -1);
    }
  }

  /// Adds a token or gives a known one other properties.
  void add_token(const Json& entry, int32_t number) {
    constexpr std::string_view kWhere = "an added token";
    AddedToken token;
    const std::string& content = text(entry, "content", kWhere);
    token.content = content;
    if (number < 0) fail("an added token has no id: {}", shown(token.content));
    if (token.content.empty()) fail("an added token is empty: id {}", number);
    token.id = number;
    token.special = flag(entry, "special", false, kWhere);
    token.single_word = flag(entry, "single_word", false, kWhere);
    token.strip_left = flag(entry, "lstrip", false, kWhere);
    token.strip_right = flag(entry, "rstrip", false, kWhere);
    token.normalized = flag(entry, "normalized", !token.special, kWhere);
    const auto [known, is_new] = ids_.emplace(content, number);
    if (known->second != number) {
      fail("an added token has two ids: {} is {} and {}", shown(token.content), known->second, number);
    }
    if (!take(number, content)) {
      fail("two tokens have the id {}: {} and {}", number, shown(contents_[number]), shown(token.content));
    }
    auto& tokens = file_.added_tokens;
    const auto place = added_.emplace(number, tokens.size());
    if (place.second) tokens.emplace_back();
    tokens[place.first->second] = std::move(token);
  }

  void read_normalizer(const Json* normalizer, int depth) {
    if (normalizer == nullptr) return;
    const std::string& type = text(*normalizer, "type", "the normalizer");
    if (type == "NFC") {
      file_.nfc = true;
    } else if (type == "Sequence") {
      for (const Json& one : members(*normalizer, "normalizers", depth, "normalizer")) read_normalizer(&one, depth + 1);
    } else {
      unsupported("normalizer", type, "NFC, Sequence, none");
    }
  }

  void read_pre_tokenizer() {
    const Json* const pre_tokenizer = optional_object(root_, "pre_tokenizer");
    if (pre_tokenizer != nullptr) read_stage(*pre_tokenizer, 0);
    if (!byte_level_) unsupported("pre_tokenizer", "without ByteLevel", "one that ends with ByteLevel");
  }

  void read_stage(const Json& stage, int depth) {
    constexpr std::string_view kWhere = "the pre_tokenizer";
    const std::string& type = text(stage, "type", kWhere);
    if (type == "Sequence") {
      for (const Json& one : members(stage, "pretokenizers", depth, "pre_tokenizer")) read_stage(one, depth + 1);
      return;
    }
    if (byte_level_) unsupported("pre_tokenizer", type + " after ByteLevel", "ByteLevel at the end");
    if (file_.splits.size() >= kMostStages) fail("the pre_tokenizer has too many stages");
    if (type == "ByteLevel") {
      byte_level_ = true;
      file_.prefix_space = flag(stage, "add_prefix_space", true, kWhere);
      file_.byte_level_regex = flag(stage, "use_regex", true, kWhere);
    } else if (type == "Split") {
      add_split(pattern(object(stage, "pattern", kWhere)), behavior(text(stage, "behavior", kWhere)),
                flag(stage, "invert", false, kWhere));
    } else if (type == "Digits") {
      add_split(R"(\p{N})",
                flag(stage, "individual_digits", false, kWhere) ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
    } else if (type == "Punctuation") {
      add_split(R"([!-/:-@\[-`{-~\p{P}])",
                member(stage, "behavior") != nullptr ? behavior(text(stage, "behavior", kWhere)) : SplitBehavior::isolated,
                false);
    } else {
      unsupported("pre_tokenizer", type, "ByteLevel, Split, Digits, Punctuation, Sequence");
    }
  }

  std::string pattern(const Json& pattern) const {
    if (member(pattern, "Regex") != nullptr) return text(pattern, "Regex", "the pre_tokenizer's pattern");
    return literal_regex(text(pattern, "String", "the pre_tokenizer's pattern"));
  }

  SplitBehavior behavior(const std::string& name) const {
    if (name == "Isolated") return SplitBehavior::isolated;
    if (name == "Removed") return SplitBehavior::removed;
    if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
    if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
    if (name == "Contiguous") return SplitBehavior::contiguous;
    unsupported("pre_tokenizer behavior", name, "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
  }

  void add_split(std::string_view pattern, SplitBehavior behavior, bool invert) {
    if (pattern.empty()) fail("the pre_tokenizer has an empty pattern");
    file_.splits.push_back(
        {.pattern = Regex(pattern, fmt::format("the pre_tokenizer of {}", path_)), .behavior = behavior, .invert = invert});
  }

  void read_post_processor(const Json* processor, int depth) {
    if (processor == nullptr) return;
    const std::string& type = text(*processor, "type", "the post_processor");
    if (type == "ByteLevel") return;  // It moves offsets, which nobody asks for here.
    if (type == "Sequence") {
      for (const Json& one : members(*processor, "processors", depth, "post_processor")) read_post_processor(&one, depth + 1);
    } else if (type == "TemplateProcessing") {
      read_template(*processor);
    } else {
      unsupported("post_processor", type, "TemplateProcessing, ByteLevel, Sequence, none");
    }
  }

  /// What the template has before and after the text goes around what earlier processors put there.
  void read_template(const Json& processor) {
    constexpr std::string_view kWhere = "the post_processor's template";
    std::vector<int32_t> before, after;
    bool seen_text = false;
    for (const Json& piece : list(processor, "single", kWhere)) {
      if (!piece.is_object()) fail("{} has a piece that is no object", kWhere);
      if (piece.contains("Sequence")) {
        if (seen_text) unsupported("post_processor", "the text twice", "the text once");
        seen_text = true;
      } else {
        const std::string& name = text(object(piece, "SpecialToken", kWhere), "id", kWhere);
        const Json& tokens = object(object(processor, "special_tokens", kWhere), name.c_str(), kWhere);
        for (const Json& number : list(tokens, "ids", kWhere)) {
          const int32_t token = id(number, kWhere);
          if (!contents_.contains(token)) fail("{} has an id that is no token: {}", kWhere, token);
          (seen_text ? after : before).push_back(token);
        }
      }
    }
    if (!seen_text) unsupported("post_processor", "without the text", "the text once");
    file_.before.insert(file_.before.begin(), before.begin(), before.end());
    file_.after.insert(file_.after.end(), after.begin(), after.end());
  }

  void read_decoder() const {
    const Json* decoder = optional_object(root_, "decoder");
    for (int depth = 0; decoder != nullptr && member(*decoder, "decoders") != nullptr; ++depth) {
      const Json& all = members(*decoder, "decoders", depth, "decoder");
      if (all.size() != 1) unsupported("decoder", "several stages", "ByteLevel");
      decoder = &all[0];
    }
    const std::string type = decoder == nullptr ? "none" : text(*decoder, "type", "the decoder");
    if (type != "ByteLevel") unsupported("decoder", type, "ByteLevel");
  }

  void read_config() {
    if (const Json* const known = member(config_, "added_tokens_decoder"); known != nullptr && known->is_object()) {
      for (const auto& [number, entry] : known->get_ref<const Json::object_t&>()) {
        if (!entry.is_object() || number.empty() || number.size() > 7 ||
            !std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; })) {
          fail("tokenizer_config.json has an added token that cannot be read: {}", shown(number));
        }
        add_token(entry, id(std::stol(number), "tokenizer_config.json"));
      }
    }
    file_.bos = config_token("bos_token");
    file_.eos = config_token("eos_token");
    if (const Json* const add = member(config_, "add_bos_token"); add != nullptr && add->is_boolean()) {
      put_at_end(file_.before, file_.bos, add->get<bool>(), "bos_token");
    }
    if (const Json* const add = member(config_, "add_eos_token"); add != nullptr && add->is_boolean()) {
      put_at_end(file_.after, file_.eos, add->get<bool>(), "eos_token");
    }
  }

  /// A special token by the name that the config gives it: a text, or an object with "content".
  std::optional<int32_t> config_token(const char* key) const {
    const Json* const value = member(config_, key);
    if (value == nullptr) return std::nullopt;
    const std::string& content =
        value->is_object() ? text(*value, "content", key) : text(config_, key, "tokenizer_config.json");
    const auto found = ids_.find(content);
    if (found == ids_.end()) fail("tokenizer_config.json names a {} that is no token: {}", key, shown(content));
    return found->second;
  }

  /// The config says whether a token is among those around the text.
  void put_at_end(std::vector<int32_t>& around, std::optional<int32_t> token, bool wanted, std::string_view name) {
    if (!token) {
      if (wanted) fail("tokenizer_config.json asks to add a {} and names none", name);
      return;
    }
    const bool there = std::find(around.begin(), around.end(), *token) != around.end();
    if (wanted && !there) {
      around.insert(name == "bos_token" ? around.begin() : around.end(), *token);
    } else if (!wanted) {
      std::erase(around, *token);
    }
  }

  std::string_view path_;
  Json root_, config_;
  TokenizerFile file_;
  bool byte_level_ = false;
  std::unordered_map<std::string_view, int32_t> ids_;  ///< vocabulary and added tokens; the texts are root_'s and config_'s
  std::unordered_map<int32_t, std::string_view> contents_;  ///< the other way round
  std::unordered_map<int32_t, size_t> added_;               ///< id -> index of added_tokens
};

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view json, std::string_view config, std::string_view path) {
  return Reader(json, config, path).run();
}

}  // namespace weft

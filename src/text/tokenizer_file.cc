#include "text/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/byte_pair_model.h"
#include "text/json_fields.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_names.h"

namespace weft {
namespace {

using Json = JsonFields::Json;

constexpr int kMostNestedStages = 8;
constexpr size_t kMostStages = 32;

// What the pre_tokenizer ByteLevel brings along.
constexpr std::string_view kByteLevelPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The byte that a token of a SentencePiece vocabulary is, as in "<0x0A>".
std::optional<uint8_t> byte_of(std::string_view content) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (content.size() != 6 || !content.starts_with("<0x") || content[5] != '>') return std::nullopt;
  const size_t high = kDigits.find(content[3]), low = kDigits.find(content[4]);
  if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

class Reader : private JsonFields {
 public:
  Reader(std::string_view json, std::string_view config, std::string_view path) : JsonFields(path), path_(path), names_(*this) {
    root_ = parsed(json, "the tokenizer");
    if (!config.empty()) config_ = parsed(config, "tokenizer_config.json");
  }

  TokenizerFile run() {
    read_model(object(root_, "model", "the tokenizer"));
    read_added_tokens();
    read_normalizer(optional_object(root_, "normalizer"), 0);
    read_pre_tokenizer();
    read_post_processor(optional_object(root_, "post_processor"), 0);
    by_character_ ? read_mark_decoder(optional_object(root_, "decoder"), 0) : read_byte_level_decoder();
    if (by_character_ && (!decodes_marks_ || !decodes_bytes_)) {
      unsupported("decoder", "without Replace or ByteFallback", "both, as the model has byte_fallback");
    }
    if (!config_.is_null()) names_.read_config(config_, around_);
    return build();
  }

 private:
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
    by_character_ = flag(model, "byte_fallback", false, "the model");
    pairs_.whole_words = flag(model, "ignore_merges", false, "the model");
    pairs_.fuse_unknown = flag(model, "fuse_unk", false, "the model");
    read_vocabulary(object(model, "vocab", "the model"));
    if (member(model, "unk_token") != nullptr) {
      pairs_.unknown = vocabulary_id(text(model, "unk_token", "the model"), "the model's unk_token");
    }
    if (by_character_) read_byte_fallback();
    read_merges(list(model, "merges", "the model"));
  }

  void read_vocabulary(const Json& vocabulary) {
    vocabulary_.reserve(vocabulary.size());
    for (const auto& [content, value] : vocabulary.get_ref<const Json::object_t&>()) {
      const int32_t number = id(value, "the vocabulary");
      if (!names_.take(number, content)) fail("the vocabulary gives two tokens the id {}", number);
      vocabulary_.emplace_back(content, number);
    }
    if (vocabulary_.empty()) fail("the vocabulary is empty");
  }

  /// A vocabulary that came from SentencePiece: a token for each byte, of characters that are no token, and the mark of a
  /// space.
  void read_byte_fallback() {
    pairs_.byte_fallback.assign(256, -1);
    for (const auto& [content, number] : vocabulary_) {
      if (const auto byte = byte_of(content)) pairs_.byte_fallback[*byte] = number;
    }
    const auto missing = std::find(pairs_.byte_fallback.begin(), pairs_.byte_fallback.end(), -1);
    if (missing != pairs_.byte_fallback.end() || !names_.find(kSpaceMark)) {
      unsupported(
          "model.byte_fallback",
          missing != pairs_.byte_fallback.end() ? "true, but a byte has no token" : "true, but no token is the mark U+2581",
          "<0x00> to <0xFF> and U+2581 in the vocabulary, or false");
    }
  }

  int32_t vocabulary_id(std::string_view content, std::string_view where) const {
    const auto found = names_.find(content);
    if (!found) fail("{} is not in the vocabulary: {}", where, shown(content));
    return *found;
  }

  void read_merges(const Json& merges) {
    pairs_.merges.reserve(merges.size());
    std::string merged;
    for (const Json& merge : merges) {
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string_view both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
          fail("merge {} is not two tokens: {}", pairs_.merges.size(), shown(both));
        }
        left = both.substr(0, space), right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>(), right = merge[1].get_ref<const std::string&>();
      } else {
        fail("merge {} is neither a text nor a pair of texts", pairs_.merges.size());
      }
      if (by_character_ && (byte_of(left) || byte_of(right))) unsupported("model.merges", "a merge of a byte's token", "none");
      merged.assign(left).append(right);
      pairs_.merges.push_back({.left = vocabulary_id(left, "a merge's left part"),
                               .right = vocabulary_id(right, "a merge's right part"),
                               .merged = vocabulary_id(merged, "a merge's result")});
    }
  }

  void read_added_tokens() {
    if (member(root_, "added_tokens") == nullptr) return;
    for (const Json& entry : list(root_, "added_tokens", "the tokenizer")) {
      if (!entry.is_object()) fail("an added token is no object");
      names_.add(entry, entry.contains("id") ? id(entry["id"], "an added token") : -1);
    }
  }

  void read_normalizer(const Json* normalizer, int depth) {
    if (normalizer == nullptr) return;
    const std::string& type = text(*normalizer, "type", "the normalizer");
    if (type == "NFC") {
      form_.compose();
    } else if (type == "Sequence") {
      for (const Json& one : members(*normalizer, "normalizers", depth, "normalizer")) read_normalizer(&one, depth + 1);
    } else if (by_character_ && type == "Prepend") {
      if (text(*normalizer, "prepend", "the normalizer") != kSpaceMark)
        unsupported("normalizer.prepend", "other text", "U+2581");
      form_.prepend(std::string(kSpaceMark));
    } else if (by_character_ && type == "Replace") {
      require_replacement(*normalizer, "normalizer", " ", kSpaceMark);
      form_.replace(" ", std::string(kSpaceMark));
    } else {
      unsupported("normalizer", type,
                  by_character_ ? "NFC, Prepend, Replace, Sequence, none" : "NFC, Sequence, none, without byte_fallback");
    }
  }

  /// A stage that makes `from` `to`, and does nothing else.
  void require_replacement(const Json& stage, std::string_view where, std::string_view from, std::string_view to) const {
    const Json* const literal = member(object(stage, "pattern", where), "String");
    if (literal == nullptr || !literal->is_string() || literal->get_ref<const std::string&>() != from ||
        text(stage, "content", where) != to) {
      unsupported(std::string(where) + ".Replace", "another pattern or content", "a space and U+2581");
    }
  }

  void read_pre_tokenizer() {
    const Json* const pre_tokenizer = optional_object(root_, "pre_tokenizer");
    if (pre_tokenizer != nullptr) read_stage(*pre_tokenizer, 0);
    if (by_character_ && byte_level_) unsupported("model.byte_fallback", "true with ByteLevel", "false");
    if (!by_character_ && !byte_level_) {
      unsupported("pre_tokenizer", "without ByteLevel", "one that ends with ByteLevel, or a model with byte_fallback");
    }
  }

  void read_stage(const Json& stage, int depth) {
    constexpr std::string_view kWhere = "the pre_tokenizer";
    const std::string& type = text(stage, "type", kWhere);
    if (type == "Sequence") {
      for (const Json& one : members(stage, "pretokenizers", depth, "pre_tokenizer")) read_stage(one, depth + 1);
      return;
    }
    if (byte_level_) unsupported("pre_tokenizer", type + " after ByteLevel", "ByteLevel at the end");
    if (marks_) unsupported("pre_tokenizer", type + " after Metaspace", "Metaspace alone");
    if (splits_.size() >= kMostStages) fail("the pre_tokenizer has too many stages");
    if (type == "ByteLevel") {
      byte_level_ = true;
      prefix_space_ = flag(stage, "add_prefix_space", true, kWhere);
      byte_level_regex_ = flag(stage, "use_regex", true, kWhere);
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
    } else if (by_character_ && type == "Metaspace" && splits_.empty()) {
      read_metaspace(stage);
    } else {
      unsupported("pre_tokenizer", type,
                  by_character_ ? "Metaspace alone, Split, Digits, Punctuation, Sequence, none"
                                : "ByteLevel, Split, Digits, Punctuation, Sequence");
    }
  }

  void read_metaspace(const Json& stage) {
    constexpr std::string_view kWhere = "the pre_tokenizer Metaspace";
    if (text(stage, "replacement", kWhere) != kSpaceMark) unsupported("pre_tokenizer.replacement", "another", "U+2581");
    using Prefix = BytePairModel::Prefix;
    BytePairModel::SpaceMarks marks;
    marks.cuts = flag(stage, "split", true, kWhere);
    if (member(stage, "prepend_scheme") == nullptr) {
      marks.prefix = flag(stage, "add_prefix_space", true, kWhere) ? Prefix::always : Prefix::never;
    } else {
      static constexpr std::pair<std::string_view, Prefix> kSchemes[] = {
          {"always", Prefix::always}, {"first", Prefix::first}, {"never", Prefix::never}};
      const std::string& scheme = text(stage, "prepend_scheme", kWhere);
      const auto* const known =
          std::find_if(std::begin(kSchemes), std::end(kSchemes), [&](const auto& one) { return one.first == scheme; });
      if (known == std::end(kSchemes)) unsupported("pre_tokenizer.prepend_scheme", scheme, "always, first, never");
      marks.prefix = known->second;
    }
    marks_ = marks;
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
    splits_.push_back(
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
          if (!names_.has(token)) fail("{} has an id that is no token: {}", kWhere, token);
          (seen_text ? after : before).push_back(token);
        }
      }
    }
    if (!seen_text) unsupported("post_processor", "without the text", "the text once");
    around_.before.insert(around_.before.begin(), before.begin(), before.end());
    around_.after.insert(around_.after.end(), after.begin(), after.end());
  }

  void read_byte_level_decoder() const {
    const Json* decoder = optional_object(root_, "decoder");
    for (int depth = 0; decoder != nullptr && member(*decoder, "decoders") != nullptr; ++depth) {
      const Json& all = members(*decoder, "decoders", depth, "decoder");
      if (all.size() != 1) unsupported("decoder", "several stages", "ByteLevel");
      decoder = &all[0];
    }
    const std::string type = decoder == nullptr ? "none" : text(*decoder, "type", "the decoder");
    if (type != "ByteLevel") unsupported("decoder", type, "ByteLevel");
  }

  /// That of a vocabulary from SentencePiece: marks to spaces, bytes to characters, and maybe the first space away.
  void read_mark_decoder(const Json* decoder, int depth) {
    if (decoder == nullptr) return;
    const std::string& type = text(*decoder, "type", "the decoder");
    if (type == "Sequence") {
      for (const Json& one : members(*decoder, "decoders", depth, "decoder")) read_mark_decoder(&one, depth + 1);
    } else if (type == "Replace") {
      require_replacement(*decoder, "decoder", kSpaceMark, " ");
      decodes_marks_ = true;
    } else if (type == "ByteFallback") {
      decodes_bytes_ = true;
    } else if (type == "Strip") {
      const Json *const start = member(*decoder, "start"), *const stop = member(*decoder, "stop");
      if (text(*decoder, "content", "the decoder") != " " || start == nullptr || *start != 1 || stop == nullptr || *stop != 0) {
        unsupported("decoder.Strip", "other text", "one space at the beginning");
      }
      drops_first_space_ = true;
    } else if (type != "Fuse") {
      unsupported("decoder", type, "Replace, ByteFallback, Fuse, Strip, Sequence");
    }
  }

  /// What a token stands for in text.
  std::string decoded(std::string_view content) const {
    if (by_character_) {
      if (const auto byte = byte_of(content)) return std::string(1, static_cast<char>(*byte));
      return replaced(content, kSpaceMark, " ");
    }
    auto bytes = byte_level_bytes(content);
    return bytes ? std::move(*bytes) : std::string(content);
  }

  TokenizerFile build() {
    TokenizerFile file;
    int32_t last = 0;
    for (const auto& [content, number] : vocabulary_) last = std::max(last, number);
    file.bytes.resize(last + 1);
    for (const auto& [content, number] : vocabulary_) {
      file.bytes[number] = decoded(content);
      // Tokens outside the byte-level alphabet cannot come of merging bytes, nor a byte's token of merging characters.
      if (by_character_) {
        if (!byte_of(content)) pairs_.tokens.emplace_back(content, number);
      } else if (auto bytes = byte_level_bytes(content)) {
        pairs_.tokens.emplace_back(std::move(*bytes), number);
      }
    }
    for (const AddedToken& token : names_.added()) {
      last = std::max(last, token.id);
      file.bytes.resize(last + 1);
      if (file.bytes[token.id].empty()) file.bytes[token.id] = by_character_ ? decoded(token.content) : token.content;
    }
    file.added_tokens = std::move(names_.added());
    file.before = std::move(around_.before);
    file.after = std::move(around_.after);
    file.bos = around_.bos;
    file.eos = around_.eos;
    file.drops_first_space = drops_first_space_;
    std::optional<PreTokenizer::Split> after_prefix;
    if (byte_level_regex_) after_prefix.emplace(PreTokenizer::Split{.pattern = Regex(kByteLevelPattern, "ByteLevel")});
    file.model = std::make_unique<BytePairModel>(
        std::move(form_), marks_, PreTokenizer(std::move(splits_), prefix_space_, std::move(after_prefix)), std::move(pairs_));
    return file;
  }

  std::string path_;
  Json root_, config_;
  TokenNames names_;  ///< the texts are root_'s and config_'s
  TokenNames::Around around_;
  std::vector<std::pair<std::string_view, int32_t>> vocabulary_;
  Bpe::Vocabulary pairs_;
  bool by_character_ = false;  ///< byte_fallback: the vocabulary came from SentencePiece
  NormalForm form_;
  std::vector<PreTokenizer::Split> splits_;
  bool byte_level_ = false, prefix_space_ = false;
  bool byte_level_regex_ = false;  ///< after the splits, GPT-2's
  std::optional<BytePairModel::SpaceMarks> marks_;
  bool decodes_marks_ = false, decodes_bytes_ = false, drops_first_space_ = false;
};

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view json, std::string_view config, std::string_view path) {
  return Reader(json, config, path).run();
}

}  // namespace weft

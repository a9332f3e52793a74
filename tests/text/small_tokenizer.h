#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace weft::test {

/// Bytes as a byte-level vocabulary writes them.
inline std::string written(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, byte_level_character(static_cast<uint8_t>(byte)));
  return text;
}

/// A tokenizer.json whose tokens 0 to 255 are the bytes, and 256 and on come of these merges, by rank.
inline nlohmann::json small_tokenizer_json(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  using Json = nlohmann::json;
  Json vocabulary = Json::object(), list = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocabulary[written(std::string(1, static_cast<char>(byte)))] = byte;
  for (const auto& [left, right] : merges) {
    const std::string merged = written(left + right);
    if (!vocabulary.contains(merged)) {
      const size_t id = vocabulary.size();
      vocabulary[merged] = id;
    }
    list.push_back(Json::array({written(left), written(right)}));
  }
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"added_tokens", Json::array()}, {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},   {"post_processor", nullptr},
          {"decoder", byte_level},         {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", list}}}};
}

/// An added token with these flags beside its content and id.
inline nlohmann::json added_token(int id, const std::string& content, const nlohmann::json& flags = nlohmann::json::object()) {
  nlohmann::json token = {{"id", id},        {"content", content}, {"special", false},   {"single_word", false},
                          {"lstrip", false}, {"rstrip", false},    {"normalized", false}};
  token.update(flags);
  return token;
}

/// Stands for a space in vocabularies that came from SentencePiece.
inline const std::string kMark = "\u2581";

inline nlohmann::json replace_stage(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

/// A tokenizer.json of that kind: 0 to 2 are <unk>, <s> and </s>, 3 to 258 the bytes, then the mark, these characters, and what
/// comes of the merges.
inline nlohmann::json marked_tokenizer_json(const std::vector<std::string>& characters,
                                            const std::vector<std::pair<std::string, std::string>>& merges) {
  using json = nlohmann::json;
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}, list = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  const auto add = [&](const std::string& token) {
    const size_t id = vocabulary.size();
    if (!vocabulary.contains(token)) vocabulary[token] = id;
  };
  add(kMark);
  for (const std::string& character : characters) add(character);
  for (const auto& [left, right] : merges) {
    add(left + right);
    list.push_back(nlohmann::json::array({left, right}));
  }
  json file;
  file["added_tokens"] = {added_token(0, "<unk>", {{"special", true}}), added_token(1, "<s>", {{"special", true}}),
                          added_token(2, "</s>", {{"special", true}})};
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", nlohmann::json::array({nlohmann::json{{"type", "Prepend"}, {"prepend", kMark}},
                                                               replace_stage(" ", kMark)})}};
  file["pre_tokenizer"] = nullptr;
  file["post_processor"] = nullptr;
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders", nlohmann::json::array({replace_stage(kMark, " "), nlohmann::json{{"type", "ByteFallback"}},
                                          nlohmann::json{{"type", "Fuse"}},
                                          nlohmann::json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}};
  file["model"] = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                   {"byte_fallback", true}, {"vocab", vocabulary},  {"merges", list}};
  return file;
}

inline nlohmann::json split(const std::string& regex, const std::string& behavior = "Isolated", bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}};
}

/// The file with these stages, then ByteLevel without a pattern of its own.
inline nlohmann::json with_stages(nlohmann::json file, std::vector<nlohmann::json> stages) {
  stages.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", stages}};
  return file;
}

inline std::unique_ptr<Tokenizer> tokenizer_of(const nlohmann::json& file, const nlohmann::json& config = nullptr) {
  return Tokenizer::parse(file.dump(), config.is_null() ? "" : config.dump());
}

/// The bytes of each token of `text`.
inline std::vector<std::string> tokens_of(const Tokenizer& tokenizer, std::string_view text,
                                          const EncodeOptions& options = {}) {
  std::vector<std::string> tokens;
  for (const int32_t id : tokenizer.encode(text, options)) tokens.emplace_back(tokenizer.token_bytes(id));
  return tokens;
}

/// Where the pre-tokenizer cuts: every word that has one is a token, as the model of this file knows all words of the text.
inline std::vector<std::string> words_of(nlohmann::json file, const std::string& text) {
  file["model"]["ignore_merges"] = true;
  auto& vocabulary = file["model"]["vocab"];
  for (size_t begin = 0; begin < text.size(); ++begin) {
    for (size_t end = begin + 1; end <= text.size(); ++end) {
      const std::string word = written(text.substr(begin, end - begin)),
                        spaced = written(" " + text.substr(begin, end - begin));
      for (const std::string& one : {word, spaced}) {
        const size_t id = vocabulary.size();
        if (!vocabulary.contains(one)) vocabulary[one] = id;
      }
    }
  }
  return tokens_of(*tokenizer_of(file), text);
}

}  // namespace weft::test

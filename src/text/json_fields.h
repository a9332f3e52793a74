#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace weft {

/// Untrusted text for a message: in quotes, printable, on one line, short.
std::string shown(std::string_view text);

/// Reads JSON of uncertain shape: each call gives what it is named after, or throws a UserError that says what is wrong where,
/// and ends with the path of the file.
class JsonFields {
 public:
  using Json = nlohmann::json;
  static constexpr int64_t kGreatestId = (1 << 22) - 1;  ///< ids index a table; the largest vocabularies are below 2^19

  explicit JsonFields(std::string_view path) : path_(path) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}, path {}", fmt::format(format, std::forward<Args>(args)...), path_);
  }
  /// A component that asks for what is not there.
  [[noreturn]] void unsupported(std::string_view component, std::string_view found, std::string_view supported) const {
    fail("the tokenizer's {} is not supported: {}, supported: {}", component, shown(found), supported);
  }

  /// A JSON object.
  Json parsed(std::string_view text, std::string_view what) const;
  /// Null if there is none, or it is null.
  const Json* member(const Json& parent, const char* key) const;
  const Json& object(const Json& parent, const char* key, std::string_view where) const;
  const Json* optional_object(const Json& parent, const char* key) const;
  const Json& list(const Json& parent, const char* key, std::string_view where) const;
  const std::string& text(const Json& parent, const char* key, std::string_view where) const;
  bool flag(const Json& parent, const char* key, bool otherwise, std::string_view where) const;
  int32_t id(const Json& value, std::string_view where) const;

 private:
  std::string_view path_;
};

}  // namespace weft

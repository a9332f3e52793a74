#include "server/api_error.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace weft {
namespace {

constexpr size_t kShownBytes = 80;

}  // namespace

std::string as_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kShownBytes)) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    out += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kShownBytes ? "...\"" : "\"");
}

std::string error_json(int status, std::string_view message, std::string_view param, std::string_view code) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  nlohmann::ordered_json error;
  error["message"] = message;
  error["type"] = type;
  error["param"] = param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(param);
  error["code"] = code.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(code);
  nlohmann::ordered_json out;
  out["error"] = std::move(error);
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string error_json(const ApiError& error) { return error_json(error.status, error.what(), error.param, error.code); }

}  // namespace weft

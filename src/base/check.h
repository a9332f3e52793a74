#pragma once

#include <fmt/format.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace weft {

/// The caller is wrong: a bad flag, request, checkpoint or config. Becomes a usage message or an HTTP 400. The message says
/// what was wrong, the values last, and what would be accepted.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <typename... Args>
  requires(sizeof...(Args) > 0) explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// The environment fails: a file, a device, a peer. The engine stops cleanly.
class SystemError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <typename... Args>
  requires(sizeof...(Args) > 0) explicit SystemError(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

namespace check_detail {

/// Collects the message of a failed check and ends the process when it goes out of scope.
class Failure {
 public:
  Failure(const char* file, int line, std::string what);
  [[noreturn]] ~Failure();
  template <typename T>
  Failure& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  std::ostringstream text_;
};

template <typename A, typename B>
std::string values(const A& a, const B& b) {
  std::ostringstream out;
  out << " (" << +a << " vs " << +b << ")";
  return out.str();
}

}  // namespace check_detail

// We are wrong: prints the condition, both values and the streamed message, then dies. Cheap checks stay on in release.
#define WEFT_CHECK(condition)   \
  switch (0)                    \
  case 0:                       \
  default:                      \
    if (condition) [[likely]] { \
    } else                      \
      ::weft::check_detail::Failure(__FILE__, __LINE__, "check failed: " #condition " ")

#define WEFT_CHECK_OP(op, a, b)                         \
  switch (0)                                            \
  case 0:                                               \
  default:                                              \
    if ((a)op(b)) [[likely]] {                          \
    } else                                              \
      ::weft::check_detail::Failure(__FILE__, __LINE__, \
                                    "check failed: " #a " " #op " " #b + ::weft::check_detail::values((a), (b)) + " ")

#define WEFT_CHECK_EQ(a, b) WEFT_CHECK_OP(==, a, b)
#define WEFT_CHECK_NE(a, b) WEFT_CHECK_OP(!=, a, b)
#define WEFT_CHECK_LT(a, b) WEFT_CHECK_OP(<, a, b)
#define WEFT_CHECK_LE(a, b) WEFT_CHECK_OP(<=, a, b)
#define WEFT_CHECK_GT(a, b) WEFT_CHECK_OP(>, a, b)
#define WEFT_CHECK_GE(a, b) WEFT_CHECK_OP(>=, a, b)

}  // namespace weft

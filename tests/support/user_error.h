#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/check.h"

namespace weft::test {

/// The message of the UserError that `action` throws, which must be one printable line. Fails the test if there is none.
template <typename Action>
std::string user_error(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    const std::string message = error.what();
    for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << "not one printable line: " << message;
    EXPECT_LT(message.size(), 2000u);
    return message;
  }
  ADD_FAILURE() << "no UserError";
  return "";
}

}  // namespace weft::test

// Prompts equal to those of Python's Jinja, set up as transformers sets it up: on the chat templates of released models, which
// npm fetches with their tokenizers; on our own; and on random ones.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace weft {
namespace {

constexpr int kNotInstalled = 77;

TEST(JinjaOracle, PromptsAreThoseOfPythonsJinja) {
  const bool full = std::getenv("WEFT_FULL") != nullptr;
  const char* const chosen = std::getenv("WEFT_SEED");
  const std::string source = WEFT_SOURCE_DIR, seed = chosen != nullptr ? chosen : "1", count = full ? "20000" : "500";
  const std::string command =
      source + "/tests/text/oracle/jinja.sh " + WEFT_JINJA_ORACLE + " " + source + "/build/text_oracle " + seed + " " + count;
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status)) << command;
  if (WEXITSTATUS(status) == kNotInstalled) {
    GTEST_SKIP() << "not compared, as python3-jinja2 is not installed: the templates of 4 packages, our own, and " << count
                 << " random ones";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << command;
}

}  // namespace
}  // namespace weft

// Ids and texts equal to those of Hugging Face's library on the vocabularies of six families. Neither is part of this project:
// both are fetched by npm.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace weft {
namespace {

constexpr int kTokenizers = 6;
constexpr int kCannotFetch = 77;

TEST(TokenizerOracle, IdsAndTextsAreThoseOfHuggingFace) {
  const bool full = std::getenv("WEFT_FULL") != nullptr;
  const std::string source = WEFT_SOURCE_DIR, texts = full ? "10000" : "400";
  const std::string command = source + "/tests/text/oracle/run.sh " + WEFT_TEXT_ORACLE + " " + source + "/build/text_oracle " +
                              texts + (full ? " every-character" : "");
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status)) << command;
  if (WEXITSTATUS(status) == kCannotFetch) {
    GTEST_SKIP() << "not compared, as npm could not fetch the library: " << kTokenizers << " tokenizers with " << texts
                 << " texts each";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << command;
}

}  // namespace
}  // namespace weft

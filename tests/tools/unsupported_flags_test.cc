#include "tools/unsupported_flags.h"

#include <gmock/gmock.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tools/command_line.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(UnsupportedFlags, EachIsRefusedByNameWithReasonAndAlternative) {
  for (const UnsupportedFlags& flags : unsupported_flags()) {
    EXPECT_FALSE(flags.reason.empty());
    EXPECT_FALSE(flags.instead.empty());
    for (const std::string& name : flags.names) {
      const std::string spelling = (name.size() <= 3 ? "-" : "--") + name;
      EXPECT_EQ(find_flag(name), nullptr) << name << " is a flag that there is";
      try {
        parse_command_line({"serve", "MODEL", spelling, "2"}, [](const char*) { return nullptr; }, {});
        ADD_FAILURE() << spelling;
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr(spelling));
        EXPECT_THAT(error.what(), HasSubstr(flags.reason));
        EXPECT_THAT(error.what(), HasSubstr(flags.instead));
      }
    }
  }
}

TEST(UnsupportedFlags, NoNameComesTwiceAndAllAreInTheDocument) {
  std::stringstream text;
  text << std::ifstream(WEFT_SOURCE_DIR "/docs/support.md").rdbuf();
  std::set<std::string> seen;
  for (const UnsupportedFlags& flags : unsupported_flags()) {
    EXPECT_THAT(text.str(), HasSubstr("| " + flags.reason + " | " + flags.instead + " |"));
    for (const std::string& name : flags.names) {
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_THAT(text.str(), HasSubstr((name.size() <= 3 ? "`-" : "`--") + name + "`"));
    }
  }
}

TEST(UnsupportedFlags, UnderscoresAreDashesAndOthersAreNotInTheList) {
  EXPECT_THAT(why_unsupported("--enable_lora"), HasSubstr("adapter"));
  EXPECT_EQ(why_unsupported("--port"), "");
  EXPECT_EQ(why_unsupported("--"), "");
  EXPECT_EQ(why_unsupported(""), "");
}

}  // namespace
}  // namespace weft

// Chats with a server in a process of its own, by hand and by OpenAI's client.

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "e2e/chat_model.h"
#include "e2e/served_model.h"
#include "support/checkpoint_writer.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Client;
using test::ServedModel;
using ::testing::HasSubstr;

constexpr int kCannotFetch = 77;

class ChatServer : public ::testing::Test {
 protected:
  void SetUp() override { test::write_chat_model(folder_.path()); }
  std::unique_ptr<ServedModel> start(std::vector<std::string> more = {}) const {
    std::vector<std::string> flags = {"--load-format", "dummy", "-tp", "2", "-dcp", "2", "--num-gpu-blocks-override", "64",
                                      "--threads",     "2"};
    flags.insert(flags.end(), more.begin(), more.end());
    return std::make_unique<ServedModel>(WEFT_BINARY, folder_.path(), flags);
  }
  static json ask(const ServedModel& server, const std::string& path, const json& body) {
    Client client = server.client();
    return client.post(path, body.dump()).json();
  }
  static json user(const std::string& content) { return {{"messages", {{{"role", "user"}, {"content", content}}}}}; }

  test::TemporaryFolder folder_;
};

TEST_F(ChatServer, UsesTheModelsTemplate) {
  const auto server = start();
  EXPECT_EQ(ask(*server, "/apply-template", user("hi"))["prompt"], "<|end|>user: hi<|end|>assistant: ");
  EXPECT_EQ(ask(*server, "/tokenize", user("<|end|>"))["count"], 1 + 6 + 7 + 1 + 11);
  json body = user("hi");
  body["max_tokens"] = 5;
  body["ignore_eos"] = true;
  const json answer = ask(*server, "/v1/chat/completions", body);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 1 + 8 + 1 + 11) << answer;
  EXPECT_EQ(answer["usage"]["completion_tokens"], 5);
  body["messages"][0]["role"] = "tool";
  EXPECT_THAT(ask(*server, "/v1/chat/completions", body)["error"]["message"].get<std::string>(), HasSubstr("no tools here"));
}

TEST_F(ChatServer, ContinuesTheLastMessageWhereThatIsWanted) {
  const auto server = start();
  json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", "well, "}}}},
               {"continue_final_message", true},
               {"add_generation_prompt", false}};
  EXPECT_EQ(ask(*server, "/apply-template", body)["prompt"], "<|end|>user: hi<|end|>assistant: well,");
}

TEST_F(ChatServer, TakesATemplateFromAFlag) {
  const std::string file = folder_.path() / "mine.jinja";
  std::ofstream(file) << "{{ messages | length }} of {{ messages[0].role }}";
  const auto server = start({"--chat-template", file});
  EXPECT_EQ(ask(*server, "/apply-template", user("hi"))["prompt"], "1 of user");
}

TEST_F(ChatServer, ContentsOpenAisOwnClient) {
  const auto server = start({"--api-key", "secret"});
  const std::string source = WEFT_SOURCE_DIR;
  const std::string command =
      source + "/tests/e2e/openai/run.sh " + source + "/build/openai_client " + std::to_string(server->port());
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status)) << command;
  if (WEXITSTATUS(status) == kCannotFetch) GTEST_SKIP() << "1 client not tried: npm could not fetch it";
  EXPECT_EQ(WEXITSTATUS(status), 0) << command;
}

}  // namespace
}  // namespace weft

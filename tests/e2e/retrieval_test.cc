// The bundled model, trained to find what was said earlier, through a server: tokenizer, chat template, sampling and a KV cache
// spread over ranks all have to be right for an answer to be.

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "e2e/served_model.h"
#include "support/checkpoint_writer.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Client;
using test::ServedModel;

const std::string kSource = WEFT_SOURCE_DIR;

struct Case {
  std::string task, user, answer;
  int length = 0;
};

std::vector<Case> read_cases() {
  const json file = json::parse(std::ifstream(kSource + "/tools/train_demo/cases.json"));
  const std::string filler = file["filler"];
  std::vector<Case> cases;
  for (const json& one : file["cases"]) {
    Case out{.task = one["task"], .user = {}, .answer = one["answer"], .length = one["length"]};
    for (const json& part : one["user"]) {
      if (part.is_string()) {
        out.user += part.get<std::string>();
      } else {
        out.user += filler.substr(part[0], part[1].get<size_t>() - part[0].get<size_t>());
      }
    }
    cases.push_back(std::move(out));
  }
  return cases;
}

/// The dense variant of the bundled model.
class Retrieval : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v python3 >/dev/null") != 0) GTEST_SKIP() << "no python3 here to make the dense variant";
    ASSERT_EQ(
        std::system(("python3 " + kSource + "/tools/train_demo/dense.py " + kSource + "/models/demo " + folder_.path().string())
                        .c_str()),
        0);
  }

  /// Right answers by task and length, of the first `most` cases of each.
  std::map<std::pair<std::string, int>, int> ask(const std::vector<std::string>& flags, const std::vector<int>& lengths,
                                                 int most) const {
    std::vector<std::string> all = {
        "--threads", "2", "--max-num-seqs", "4", "--kv-cache-memory-bytes", "64M", "--disable-log-requests"};
    all.insert(all.end(), flags.begin(), flags.end());
    const ServedModel server(WEFT_BINARY, folder_.path(), all);
    Client client = server.client();
    std::map<std::pair<std::string, int>, int> asked, right;
    for (const Case& one : cases_) {
      if (std::find(lengths.begin(), lengths.end(), one.length) == lengths.end()) continue;
      if (++asked[{one.task, one.length}] > most) continue;
      const json body = {{"messages", {{{"role", "user"}, {"content", one.user}}}}, {"max_tokens", 48}, {"temperature", 0}};
      const json reply = client.post("/v1/chat/completions", body.dump()).json();
      EXPECT_TRUE(reply.contains("choices")) << reply;
      if (!reply.contains("choices")) continue;
      const json& choice = reply["choices"][0];
      EXPECT_LE(reply["usage"]["prompt_tokens"], one.length);
      right[{one.task, one.length}] += choice["message"]["content"] == one.answer && choice["finish_reason"] == "stop";
    }
    return right;
  }
  static void expect_nearly_all(const std::map<std::pair<std::string, int>, int>& right, int of) {
    EXPECT_FALSE(right.empty());
    for (const auto& [what, count] : right) EXPECT_GE(count, 0.95 * of) << what.first << " at " << what.second;
  }

  test::TemporaryFolder folder_;
  const std::vector<Case> cases_ = read_cases();
};

TEST_F(Retrieval, FindsWhatWasSaidEarlierOnTwoRanks) {
  expect_nearly_all(ask({"-tp", "2", "-dcp", "2"}, {1024, 4096}, 20), 20);
}

TEST_F(Retrieval, AnyNumberOfRanksAndAnyCacheFindTheSame) {
  const bool full = std::getenv("WEFT_FULL") != nullptr;
  const std::vector<int> lengths = full ? std::vector<int>{1024, 4096, 16384} : std::vector<int>{4096};
  const int most = full ? 20 : 2;
  const std::vector<std::vector<std::string>> ways = {{"-tp", "1"},
                                                      {"-tp", "4", "-dcp", "4", "--cp-kv-cache-interleave-size", "4"},
                                                      {"-tp", "8", "-dcp", "8"},
                                                      {"-tp", "8", "-dcp", "4", "--kv-cache-dtype", "fp8"},
                                                      {"-tp", "4", "-dcp", "2", "--kv-cache-dtype", "fp8_ds_mla"}};
  for (const std::vector<std::string>& way : ways) {
    SCOPED_TRACE(testing::PrintToString(way));
    expect_nearly_all(ask(way, lengths, most), most);
  }
}

}  // namespace
}  // namespace weft

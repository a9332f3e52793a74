// What the documentation tells people to type must work, and print what it says it prints.
//
// Of README.md and each page in docs, the code blocks marked `sh` are commands that any machine can run; the blocks of a page
// are one script, run in a folder where the repository's own folders are. A line that ends with "# prints ..." makes a promise.
// Blocks without that mark are shapes to be filled in.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/checkpoint_writer.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kRoot = WEFT_SOURCE_DIR;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct Page {
  std::string script;
  std::vector<std::string> promises;
};

Page page_of(const fs::path& path) {
  Page page;
  bool inside = false;
  for (const std::string& line : lines_of(path)) {
    if (line.starts_with("```")) {
      inside = !inside && line == "```sh";
      continue;
    }
    if (!inside) continue;
    page.script += line + "\n";
    constexpr std::string_view kPrints = "# prints ";
    if (const size_t at = line.find(kPrints); at != std::string::npos)
      page.promises.push_back(line.substr(at + kPrints.size()));
  }
  return page;
}

std::vector<std::string> pages() {
  std::vector<std::string> out{"README.md"};
  for (const auto& entry : fs::directory_iterator(kRoot / "docs"))
    if (entry.path().extension() == ".md") out.push_back("docs/" + entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

int free_port() {
  boost::asio::io_context io;
  return boost::asio::ip::tcp::acceptor(io, {boost::asio::ip::address_v4::loopback(), 0}).local_endpoint().port();
}

/// Another user of this machine may have the port that the pages speak of.
std::string with_port(std::string script, int port) {
  constexpr std::string_view kDefault = "8000";
  for (size_t at = 0; (at = script.find(kDefault, at)) != std::string::npos;) {
    const bool is_number = at > 0 && (std::isdigit(static_cast<unsigned char>(script[at - 1])) != 0);
    if (!is_number && script[at + kDefault.size()] != '0') script.replace(at, kDefault.size(), std::to_string(port));
    ++at;
  }
  return script;
}

struct Outcome {
  int status = -1;
  std::string text;
};

/// Runs a script with all that it starts, and ends what it leaves running.
Outcome run(const std::string& script, const fs::path& folder) {
  std::ofstream(folder / "page.sh") << script;
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    const std::string command =
        fmt::format("cd '{}' && export PATH='{}':$PATH && bash -euo pipefail page.sh >page.txt 2>&1 </dev/null",
                    folder.string(), fs::path(WEFT_BINARY).parent_path().string());
    ::execl("/bin/bash", "bash", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ::setpgid(child, child);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::kill(-child, SIGKILL);
  std::stringstream text;
  text << std::ifstream(folder / "page.txt").rdbuf();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text.str()};
}

class DocsPage : public testing::TestWithParam<std::string> {};

TEST_P(DocsPage, CommandsWorkAndPrintWhatIsSaid) {
  const Page page = page_of(kRoot / GetParam());
  const TemporaryFolder folder;
  for (const char* shared : {"tests", "bench", "models", "docs", "tools"})
    fs::create_symlink(kRoot / shared, folder.path() / shared);
  const Outcome outcome = run(with_port(page.script, free_port()), folder.path());
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  for (const std::string& promise : page.promises) EXPECT_THAT(outcome.text, HasSubstr(promise));
}

std::string name_of(const testing::TestParamInfo<std::string>& info) {
  std::string name = fs::path(info.param).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Pages, DocsPage, testing::ValuesIn(pages()), name_of);

TEST(DocsTest, LinksLeadSomewhere) {
  for (const std::string& page : pages()) {
    std::stringstream text;
    text << std::ifstream(kRoot / page).rdbuf();
    const std::string words = text.str();
    for (size_t at = 0; (at = words.find("](", at)) != std::string::npos; ++at) {
      const std::string target = words.substr(at + 2, words.find_first_of(")#", at + 2) - at - 2);
      if (target.empty() || target.find("://") != std::string::npos) continue;
      EXPECT_TRUE(fs::exists((kRoot / page).parent_path() / target)) << page << " links to " << target;
    }
  }
}

}  // namespace
}  // namespace weft::test

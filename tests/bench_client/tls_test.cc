// https, with OpenSSL's own server on the other side.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "bench_client/http_client.h"

namespace weft::bench {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// `openssl s_server` with a certificate of its own making, which gives out the files of a folder.
class FileServer {
 public:
  explicit FileServer(const fs::path& folder) {
    const std::string make = "cd " + folder.string() +
                             " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
                             "-keyout key.pem -out cert.pem -days 2 -subj /CN=localhost >log 2>&1";
    if (std::system(make.c_str()) != 0) throw std::runtime_error("openssl makes no certificate");
    int out[2];
    if (::pipe(out) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      if (::chdir(folder.c_str()) == 0)
        ::execlp("openssl", "openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", "cert.pem", "-key", "key.pem", "-WWW",
                 nullptr);
      ::_exit(127);
    }
    ::close(out[1]);
    std::string said;
    for (char c; ::read(out[0], &c, 1) == 1;) {
      said += c;
      if (const size_t at = said.find("ACCEPT 127.0.0.1:"); at != std::string::npos && c == '\n') {
        port_ = said.substr(at + 17, said.size() - at - 18);
        break;
      }
    }
    out_ = out[0];
  }
  ~FileServer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(out_);
  }
  std::string port() const { return port_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string port_;
};

TEST(Tls, AnAnswerComesOverHttpsFromAServerThatIsTrusted) {
  const fs::path folder = fs::temp_directory_path() / ("weft_tls_test." + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "file.txt") << "the words of the file";
  {
    const FileServer server(folder);
    ASSERT_NE(server.port(), "");
    ServerAddress address{.tls = true, .port = server.port()};
    const HttpRequest request{.method = "GET", .path = "/file.txt"};
    try {
      ask(address, request, 30);
      ADD_FAILURE() << "nobody vouches for this certificate";
    } catch (const SystemError& error) {
      EXPECT_THAT(error.what(), HasSubstr("certificate verify failed"));
    }
    address.insecure = true;
    const HttpAnswer answer = ask(address, request, 30);
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, HasSubstr("the words of the file"));
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weft::bench

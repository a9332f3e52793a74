#include "e2e/served_model.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace weft::test {
namespace {

constexpr std::string_view kReady = "weft serves at ";

}  // namespace

ServedModel::ServedModel(const std::string& binary, const std::filesystem::path& model, const std::vector<std::string>& flags) {
  std::string name = (std::filesystem::temp_directory_path() / "weft_serve_XXXXXX").string();
  const int log = ::mkstemp(name.data());
  log_ = name;
  int pipe[2];
  if (log < 0 || ::pipe2(pipe, O_CLOEXEC) != 0) throw std::runtime_error("no file or pipe for the server's output");
  std::vector<std::string> words = {binary, "serve", model.string(), "--port", "0"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::execv(binary.c_str(), arguments.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  ::close(log);
  out_ = pipe[0];
  std::string said;
  for (char c; ::read(out_, &c, 1) == 1 && c != '\n';) said += c;
  if (!said.starts_with(kReady)) {
    const int status = wait();
    throw std::runtime_error("weft serve ended with status " + std::to_string(status) + ": " + said + this->log());
  }
  const std::string address = said.substr(kReady.size());
  if (address.starts_with("http")) port_ = std::stoi(address.substr(address.rfind(':') + 1));
}

ServedModel::~ServedModel() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
  ::close(out_);
  std::error_code ignored;
  std::filesystem::remove(log_, ignored);
}

void ServedModel::signal(int number) const { ::kill(pid_, number); }

int ServedModel::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string ServedModel::log() const {
  std::stringstream text;
  text << std::ifstream(log_).rdbuf();
  return text.str();
}

double ServedModel::metric(const std::string& name) const {
  const std::string text = client().get("/metrics").body;
  double sum = 0;
  bool found = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + "{")) continue;
    sum += std::stod(line.substr(line.rfind(' ')));
    found = true;
  }
  if (!found) throw std::runtime_error("no metric " + name);
  return sum;
}

std::map<std::string, double> ServedModel::gauges() const {
  std::map<std::string, double> out;
  std::istringstream lines(client().get("/metrics").body);
  std::string name;  // of the gauge whose lines follow
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      const size_t end = line.rfind(' ');
      name = line.substr(end) == " gauge" ? line.substr(7, end - 7) : "";
    } else if (!line.starts_with('#') && !name.empty()) {
      const size_t end = line.rfind(' ');
      out[line.substr(0, end)] = std::stod(line.substr(end));
    }
  }
  return out;
}

bool ServedModel::becomes_quiet() const {
  for (int i = 0; i < 600; ++i) {
    if (metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") + metric("weft_kv_blocks_held") == 0 &&
        metric("weft_http_connections") <= 1)
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

int64_t ServedModel::resident_bytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace weft::test

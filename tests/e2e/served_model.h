#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "server/http_client.h"

namespace weft::test {

/// `weft serve MODEL FLAGS` in a process of its own.
class ServedModel {
 public:
  /// Waits until it is ready. Throws std::runtime_error with what it said if it ends before.
  ServedModel(const std::string& binary, const std::filesystem::path& model, const std::vector<std::string>& flags);
  /// Ends it, if wait() has not.
  ~ServedModel();
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  /// 0 where it listens on a Unix socket. The clients of this class speak neither that nor TLS.
  int port() const { return port_; }
  Client client() const { return Client(port_); }
  void signal(int number) const;
  /// Waits for it to end. Its exit status, or minus the signal that ended it.
  int wait();
  /// What it has logged so far.
  std::string log() const;
  /// Of /metrics, the sum over all labels.
  double metric(const std::string& name) const;
  /// Every gauge of /metrics, with its labels.
  std::map<std::string, double> gauges() const;
  /// Waits until no request runs, no block is held and no other connection than this one's is open. False after a minute.
  bool becomes_quiet() const;
  int64_t resident_bytes() const;

 private:
  pid_t pid_ = -1;
  int out_ = -1, port_ = 0;
  std::filesystem::path log_;
};

}  // namespace weft::test

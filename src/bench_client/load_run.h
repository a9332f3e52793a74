#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench_client/history.h"
#include "bench_client/http_client.h"
#include "bench_client/measures.h"
#include "bench_client/workload.h"

namespace weft::bench {

struct LoadProgress {
  int64_t requests = 0, done = 0, running = 0, failed = 0;
};

struct LoadSettings {
  ServerAddress server = {};
  std::string endpoint = "/v1/completions";
  HttpHeaders headers = {};            ///< of every request
  std::string request_id_prefix = {};  ///< x-request-id is this and the request's number
  RequestForm form = {};
  std::optional<int64_t> max_concurrency = {};
  uint64_t seed = 0;
  /// Called a few times a second.
  std::function<void(const LoadProgress&)> progress = {};
};

struct LoadResult {
  std::vector<Record> records;  ///< one for each turn, conversation after conversation
  double duration_s = 0;        ///< from the beginning to the end of the last answer
  bool interrupted = false;     ///< by SIGINT or SIGTERM: records tell how far it came
};

/// Sends a workload and records the answers. Conversation i begins at starts_s[i]; requests that --max-concurrency holds back
/// are sent in the order in which they became due. Once a turn has failed, the rest of its conversation is not sent and counts
/// as failed.
///
/// Thread: works on the calling one alone, until all is answered or a signal comes.
LoadResult run_load(const LoadSettings& settings, const Workload& workload, std::span<const double> starts_s);

}  // namespace weft::bench

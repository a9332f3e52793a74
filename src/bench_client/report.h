#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench_client/measures.h"

namespace weft::bench {

/// What the report of a run says of how it was made. The figures' percentiles are those that are shown.
struct ReportForm {
  double request_rate = 0;  ///< infinite: all at once
  double burstiness = 1;
  std::optional<int64_t> max_concurrency = {};
  /// Of ttft, tpot, itl, e2el, client_queue_time and e2el_including_client_queue, those that are shown.
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};
};

/// The names that ReportForm::metrics may have.
const std::vector<std::string>& metric_names();

/// The report of `vllm bench serve`, row by row under its names; one section more where the server tells of cached tokens.
std::string report_text(const Figures& figures, const ReportForm& form);

/// The same figures under the keys of its result files. `detailed` adds lists with an entry for each request.
nlohmann::ordered_json report_json(const Figures& figures, const ReportForm& form, std::span<const Record> records,
                                   bool detailed);

/// Why requests failed: each reason once, the most frequent first, `most` of them at most. Empty if none failed.
std::string failures_text(std::span<const Record> records, size_t most = 10);

}  // namespace weft::bench

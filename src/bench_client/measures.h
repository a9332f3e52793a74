#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::bench {

/// What one request has shown. Times are seconds on one clock; those of the answer count from `start_s`.
struct Record {
  enum class State : uint8_t {
    unsent,       ///< the run ended before, or an earlier turn of its conversation failed
    answered,     ///< completely
    failed,       ///< `error` says why
    interrupted,  ///< on its way, and so still when the run was ended
  };

  State state = State::unsent;
  std::string error = {};
  double due_s = 0;      ///< when it was to be sent, after the beginning of the run
  double start_s = 0;    ///< when it was sent: later where --max-concurrency made it wait
  double ttft_s = 0;     ///< to the first chunk with a token
  double latency_s = 0;  ///< to the last chunk of the answer
  /// Between chunks; one shorter than chunk_tokens. A server may put several tokens into a chunk.
  std::vector<double> itls_s = {};
  std::vector<int32_t> chunk_tokens = {};  ///< in each chunk, as far as the server tells, else 1
  int64_t input_tokens = 0;                ///< as the server counts, else as the client does
  int64_t output_tokens = 0;
  std::optional<int64_t> cached_tokens = {};  ///< of the input, where the server tells
  std::string text = {};
  std::vector<int32_t> ids = {};  ///< of the answer, where the server tells

  bool answered() const { return state == State::answered; }
  double queue_s() const { return start_s - due_s; }
};

/// What a request must keep to so that it counts for goodput, in milliseconds.
struct Objectives {
  std::optional<double> ttft_ms = {}, tpot_ms = {}, e2el_ms = {};
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

/// How some times are distributed, in milliseconds; all zero where there are none.
struct Spread {
  double mean = 0, median = 0, std = 0;                     ///< std is that of the population
  std::vector<std::pair<double, double>> percentiles = {};  ///< percent, value

  double percentile(double percent) const;
};

/// The figures of a run. Only answered requests count, but for `failed` and `interrupted`.
struct Figures {
  int64_t completed = 0, failed = 0, interrupted = 0;
  double duration_s = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  std::optional<int64_t> cached_tokens = {};
  double request_throughput = 0;       ///< a second
  std::optional<double> goodput = {};  ///< requests a second that keep to all objectives, where there are any
  double output_throughput = 0;        ///< tokens a second
  double token_throughput = 0;         ///< input and output
  double peak_output_throughput = 0;   ///< tokens in the best of the seconds since the first request was sent
  int64_t peak_concurrency = 0;        ///< requests on their way at once
  Spread ttft = {};                    ///< to the first token
  Spread tpot = {};                    ///< (latency - ttft) / (tokens - 1), of answers with two tokens or more
  Spread itl = {};                     ///< between chunks, of all requests together
  Spread e2el = {};                    ///< latency
  Spread client_queue = {};            ///< between due and sent
  Spread e2el_with_queue = {};         ///< from due to the end
};

/// Requires: duration_s > 0, percents from 0 to 100.
Figures measure(std::span<const Record> records, double duration_s, std::span<const double> percents,
                const Objectives& objectives = {});

/// Of ascending values, linearly between neighbours as numpy.percentile does; 0 of none.
double percentile_of_sorted(std::span<const double> sorted, double percent);

}  // namespace weft::bench

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench_client/arrivals.h"
#include "bench_client/datasets.h"
#include "bench_client/history.h"
#include "bench_client/http_client.h"
#include "bench_client/measures.h"
#include "bench_client/trace.h"
#include "tools/command_line.h"

namespace weft {

/// What `weft bench serve` was asked to do.
struct BenchSettings {
  struct Server {
    bench::ServerAddress address;
    std::string backend, endpoint;
    bench::HttpHeaders headers;
    double ready_timeout_s = 0;
  };
  struct Data {
    std::string name, path;
    std::string tokenizer;  ///< "" for none
    int64_t prompts = 0;    ///< the specs have it too; a trace only if it was given
    int32_t vocab_size = 0;
    bench::RandomSpec random;
    bench::PrefixRepetitionSpec prefix_repetition;
    bench::ShareGptSpec sharegpt;
    bench::TraceSpec trace;
  };
  struct Load {
    std::vector<double> rates;                          ///< one of these lists has one entry
    std::vector<std::optional<int64_t>> concurrencies;  ///< none: no bound
    bench::ArrivalPlan arrivals;                        ///< but for the rate
    bool self_timed = false;                            ///< conversations begin when the trace says
    int64_t warmups = 0;
    uint64_t seed = 0;
    std::string request_id_prefix;
  };
  struct Results {
    std::vector<std::string> metrics;
    std::vector<double> percentiles;
    bench::Objectives objectives;
    bool save = false, append = false, detailed = false, progress = true;
    std::string label, folder, file, plot;
    std::vector<std::pair<std::string, std::string>> metadata;
  };

  Server server;
  std::string model, served_name;  ///< "" where the server is to be asked
  bench::RequestForm form;         ///< but for the model
  Data data;
  Load load;
  Results results;
};

/// The options of `weft bench serve`: those of `vllm bench serve` that concern text, and a few more.
std::vector<Option> bench_serve_options();

/// Throws UserError for values that cannot be, or not together.
BenchSettings bench_settings(const Invocation& invocation, const Environment& environment);

}  // namespace weft

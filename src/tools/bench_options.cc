#include "tools/bench_settings.h"

namespace weft {
namespace {

using Options = std::vector<Option>;

Options server_options() {
  return {
      {.name = "backend", .value = "NAME", .help = "openai or vllm: completions; openai-chat: chats. openai if not given."},
      {.name = "endpoint-type", .value = "NAME", .help = "The same, as older versions of vLLM spell it."},
      {.name = "base-url", .value = "URL", .help = "Of the server, instead of --host and --port: http://HOST:PORT."},
      {.name = "host", .value = "ADDRESS", .help = "127.0.0.1 if not given."},
      {.name = "port", .value = "N", .help = "8000 if not given."},
      {.name = "endpoint", .value = "PATH", .help = "/v1/completions, or /v1/chat/completions with openai-chat, if not given."},
      {.name = "header", .value = "KEY=VALUE...", .help = "Headers of every request.", .several = true},
      {.name = "model",
       .value = "NAME",
       .help = "The server's first model if not given; a local folder also gives the tokenizer."},
      {.name = "served-model-name", .value = "NAME", .help = "The model's name in requests; --model if not given."},
      {.name = "ready-check-timeout-sec",
       .value = "SECONDS",
       .help = "Wait so long for the server to answer a first request; 0 if not given."},
  };
}

Options data_options() {
  return {
      {.name = "dataset-name",
       .value = "NAME",
       .help = "random, sharegpt, prefix_repetition or timed_trace; random if not given."},
      {.name = "dataset-path",
       .value = "FILE",
       .help = "Of sharegpt and timed_trace; docs/benchmark.md describes the formats."},
      {.name = "num-prompts", .value = "N", .help = "Requests; 1000 if not given, of a trace all."},
      {.name = "tokenizer", .value = "FOLDER", .help = "Make prompts of text; without one they are token ids."},
      {.name = "skip-tokenizer-init", .value = "", .help = "Token ids, though --model is a folder with a tokenizer."},
      {.name = "random-vocab-size", .value = "N", .help = "Token ids of made-up prompts are below; 256 if not given."},
      {.name = "input-len", .value = "N", .help = "The same as --random-input-len."},
      {.name = "output-len", .value = "N", .help = "Of the answers, in any data set but traces."},
      {.name = "random-input-len", .value = "N", .help = "Tokens of a prompt; 1024 if not given."},
      {.name = "random-output-len", .value = "N", .help = "Tokens of an answer; 128 if not given."},
      {.name = "random-range-ratio",
       .value = "R",
       .help = "Lengths from len * (1 - R) to len * (1 + R), below 1; 0 if not given."},
      {.name = "random-prefix-len", .value = "N", .help = "Tokens that all prompts begin with, in addition; 0 if not given."},
      {.name = "prefix-repetition-prefix-len", .value = "N", .help = "256 if not given."},
      {.name = "prefix-repetition-suffix-len", .value = "N", .help = "256 if not given."},
      {.name = "prefix-repetition-num-prefixes", .value = "N", .help = "10 if not given."},
      {.name = "prefix-repetition-output-len", .value = "N", .help = "128 if not given."},
      {.name = "sharegpt-output-len", .value = "N", .help = "Tokens of every answer; as in the file if not given."},
      {.name = "disable-shuffle", .value = "", .help = "Keep the order of the file, or of the prefixes."},
      {.name = "no-oversample", .value = "", .help = "No prompt twice, even if the file has too few."},
      {.name = "timed-trace-sec-multiplier",
       .value = "S",
       .help = "Seconds in a unit of the trace's time; 0.001 if not given."},
      {.name = "timed-trace-chunk-hash-size", .value = "N", .help = "Tokens that a hash id stands for; 512 if not given."},
      {.name = "self-timed", .value = "", .help = "Requests begin when the trace says: so it is if nothing is given."},
      {.name = "no-self-timed", .value = "", .help = "Requests of a trace begin as --request-rate says."},
  };
}

Options load_options() {
  return {
      {.name = "request-rate",
       .value = "R,...",
       .help = "Requests a second; several are a sweep. inf, all at once, if not given."},
      {.name = "burstiness", .value = "B", .help = "1: Poisson arrivals; less: bursts; more, to inf: even. 1 if not given."},
      {.name = "max-concurrency", .value = "N,...", .help = "Requests on their way at once, at most; several are a sweep."},
      {.name = "ramp-up-strategy", .value = "KIND", .help = "linear or exponential, instead of --request-rate."},
      {.name = "ramp-up-start-rps", .value = "R", .help = "Requests a second at first,"},
      {.name = "ramp-up-end-rps", .value = "R", .help = "and at last."},
      {.name = "num-warmups", .value = "N", .help = "Send the first prompt so often before; 0 if not given."},
      {.name = "seed", .value = "N", .help = "Of prompts and arrivals; 0 if not given."},
      {.name = "ignore-eos", .value = "", .help = "Answers have their full length: always so for random and timed_trace."},
      {.name = "temperature", .value = "T", .help = "The server's default if not given; so are those that follow."},
      {.name = "top-p", .value = "P", .help = ""},
      {.name = "top-k", .value = "K", .help = ""},
      {.name = "min-p", .value = "P", .help = ""},
      {.name = "frequency-penalty", .value = "P", .help = ""},
      {.name = "presence-penalty", .value = "P", .help = ""},
      {.name = "repetition-penalty", .value = "P", .help = ""},
      {.name = "logprobs", .value = "N", .help = "Ask for log probabilities, of N tokens at each place."},
      {.name = "extra-body", .value = "JSON", .help = "An object: more fields of every request."},
      {.name = "request-id-prefix", .value = "TEXT", .help = "x-request-id is this and a number; bench-SEED- if not given."},
  };
}

Options result_options() {
  return {
      {.name = "percentile-metrics",
       .value = "NAME,...",
       .help = "Of ttft, tpot, itl, e2el, client_queue_time, "
               "e2el_including_client_queue; ttft,tpot,itl if not given."},
      {.name = "metric-percentiles", .value = "P,...", .help = "99 if not given."},
      {.name = "goodput",
       .value = "NAME:MS...",
       .help = "Count requests that keep to these: ttft, tpot, e2el.",
       .several = true},
      {.name = "plot", .value = "FILE.svg", .help = "Draw latencies and throughput over the loads of the sweep."},
      {.name = "save-result", .value = "", .help = "Write the figures as JSON."},
      {.name = "append-result", .value = "", .help = "The same, as a further line of the file."},
      {.name = "save-detailed", .value = "", .help = "With an entry for each request."},
      {.name = "result-dir", .value = "FOLDER", .help = "Made if need be; the current one if not given."},
      {.name = "result-filename",
       .value = "FILE",
       .help = "LABEL-RATEqps-MODEL-DATE.json if not given; a sweep gives a line for each load."},
      {.name = "label", .value = "TEXT", .help = "In the results; --backend if not given."},
      {.name = "metadata", .value = "KEY=VALUE...", .help = "Goes into the results.", .several = true},
      {.name = "disable-tqdm", .value = "", .help = "No progress on standard error."},
  };
}

}  // namespace

std::vector<Option> bench_serve_options() {
  Options out;
  for (const Options& group : {server_options(), data_options(), load_options(), result_options()})
    out.insert(out.end(), group.begin(), group.end());
  return out;
}

}  // namespace weft

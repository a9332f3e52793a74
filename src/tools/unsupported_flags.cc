#include "tools/unsupported_flags.h"

#include <algorithm>

namespace weft {

const std::vector<UnsupportedFlags>& unsupported_flags() {
  static const std::vector<UnsupportedFlags> all = {
      {.names = {"enable-lora", "lora-modules", "max-loras", "max-lora-rank", "max-cpu-loras", "lora-dtype",
                 "fully-sharded-loras", "lora-paths"},
       .reason = "adapters are not applied to a running model",
       .instead = "merge the adapter into the checkpoint"},
      {.names = {"data-parallel-size", "dp", "dp-size", "data-parallel-size-local", "data-parallel-address",
                 "data-parallel-rank", "data-parallel-rpc-port", "data-parallel-backend", "enable-dp-attention"},
       .reason = "a process serves one copy of the model",
       .instead = "start several servers behind a load balancer, or use more ranks with --tensor-parallel-size"},
      {.names = {"enable-expert-parallel", "ep", "ep-size", "expert-parallel-size", "enable-eplb", "eplb-config",
                 "all2all-backend"},
       .reason = "every rank holds a slice of every expert",
       .instead = "use --tensor-parallel-size"},
      {.names = {"pipeline-parallel-size", "pp", "pp-size"},
       .reason = "every rank holds a slice of every layer",
       .instead = "use --tensor-parallel-size"},
      {.names = {"prefill-context-parallel-size", "pcp", "pcp-size", "context-parallel-size", "cp"},
       .reason = "only the KV cache is spread over ranks, not the tokens of a prefill",
       .instead = "use --decode-context-parallel-size, which long prefills use too"},
      {.names = {"trust-remote-code", "allow-remote-code"},
       .reason = "code that comes with a checkpoint is never run",
       .instead = "use a checkpoint of a supported architecture, see docs/checkpoints.md, and leave the flag out"},
      {.names = {"task", "runner", "convert", "is-embedding", "override-pooler-config", "pooler-config"},
       .reason = "this server generates text only, not embeddings, scores or classes",
       .instead = "leave the flag out, or use a server for such models"},
      {.names = {"quantization", "q", "load-in-8bit", "load-in-4bit", "torchao-config"},
       .reason = "weights are read as bfloat16, float16, float32 or fp8 e4m3 in blocks of 128 x 128, as config.json says; "
                 "int4, AWQ, GPTQ, NVFP4 and MXFP4 are not read",
       .instead = "use such a checkpoint and leave the flag out"},
      {.names = {"limit-mm-per-prompt", "mm-processor-kwargs", "allowed-local-media-path", "disable-mm-preprocessor-cache",
                 "enable-multimodal", "media-io-kwargs", "interleave-mm-strings"},
       .reason = "prompts are text and token ids only",
       .instead = "leave the flag out"},
      {.names = {"speculative-config", "speculative-model", "num-speculative-tokens", "speculative-algorithm"},
       .reason = "there are no drafts",
       .instead = "leave the flag out; the checkpoint's draft layers are skipped"},
      {.names = {"kv-transfer-config", "disaggregation-mode", "disaggregation-transfer-backend", "kv-events-config"},
       .reason = "prefill and decode run in one process",
       .instead = "leave the flag out"},
      {.names = {"kv-offloading-size", "kv-offloading-backend", "cpu-offload-gb", "swap-space", "enable-hierarchical-cache",
                 "hicache-ratio", "hicache-size"},
       .reason = "the KV cache has one tier",
       .instead = "give it more memory with --kv-cache-memory-bytes, or more ranks with --decode-context-parallel-size"},
      {.names = {"gpu-memory-utilization", "mem-fraction-static"},
       .reason = "this build runs on CPUs",
       .instead = "use --memory-per-rank or --kv-cache-memory-bytes"},
      {.names = {"enforce-eager", "cuda-graph-sizes", "compilation-config", "disable-cuda-graph", "cuda-graph-max-bs",
                 "max-seq-len-to-capture"},
       .reason = "nothing is compiled or captured",
       .instead = "leave the flag out"},
      {.names = {"enable-chunked-prefill", "disable-chunked-prefill", "no-enable-chunked-prefill"},
       .reason = "long prompts are always computed in chunks",
       .instead = "choose their size with --max-num-batched-tokens"},
      {.names = {"tokenizer", "tokenizer-mode", "skip-tokenizer-init", "tokenizer-path"},
       .reason = "the tokenizer is the tokenizer.json or tokenizer.model of the model folder",
       .instead = "put it there, or send token ids"},
      {.names = {"revision", "code-revision", "tokenizer-revision", "download-dir"},
       .reason = "models are read from a folder, not downloaded",
       .instead = "download the revision and name its folder"},
      {.names = {"hf-overrides", "rope-scaling", "rope-theta", "json-model-override-args", "model-loader-extra-config",
                 "config-format"},
       .reason = "the model is what its config.json says",
       .instead = "edit a copy of config.json"},
      {.names = {"tool-call-parser", "enable-auto-tool-choice", "tool-server"},
       .reason = "tool calls are not parsed",
       .instead = "send tool_choice none: the tools are in the prompt then, and the call is in the text of the answer"},
      {.names = {"chat-template-content-format", "response-role"},
       .reason = "messages reach the template as they are, and the assistant answers",
       .instead = "leave the flag out"},
      {.names = {"guided-decoding-backend", "structured-outputs-config", "grammar-backend"},
       .reason = "answers are not constrained by a grammar",
       .instead = "use allowed_token_ids in the request, or check the answer and ask again"},
      {.names = {"generation-config", "override-generation-config"},
       .reason = "defaults are those of the OpenAI API",
       .instead = "put the sampling parameters into the request"},
      {.names = {"ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs"},
       .reason = "the server speaks plain HTTP",
       .instead = "put a TLS proxy in front of it"},
      {.names = {"distributed-executor-backend", "nnodes", "node-rank", "master-addr", "master-port", "dist-init-addr",
                 "ray-workers-use-nsight"},
       .reason = "ranks are threads, or processes that mpirun starts",
       .instead = "start several processes with mpirun -n"},
      {.names = {"scheduling-policy", "schedule-policy", "schedule-conservativeness"},
       .reason = "requests run in the order in which they come",
       .instead = "leave the flag out"},
      {.names = {"disable-sliding-window"},
       .reason = "models with sliding windows in use are refused",
       .instead = "leave the flag out"},
      {.names = {"config"}, .reason = "flags are not read from a file", .instead = "use flags or WEFT_ variables"},
      {.names = {"otlp-traces-endpoint", "collect-detailed-traces"},
       .reason = "traces are not exported",
       .instead = "use /metrics"},
      {.names = {"api-server-count", "uvicorn-log-level", "root-path", "middleware"},
       .reason = "one process serves HTTP",
       .instead = "leave the flag out"},
  };
  return all;
}

std::string why_unsupported(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '_', '-');
  for (const UnsupportedFlags& flags : unsupported_flags()) {
    if (std::find(flags.names.begin(), flags.names.end(), plain) != flags.names.end())
      return "not in this version: " + flags.reason + "; " + flags.instead;
  }
  return "";
}

}  // namespace weft

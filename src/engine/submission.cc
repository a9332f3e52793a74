#include "engine/submission.h"

#include <algorithm>
#include <limits>

#include "engine/engine_loop.h"

namespace weft {
namespace {

/// A bijection that spreads its input over all bits (splitmix64).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void sort_unique(std::vector<int32_t>& tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

std::vector<int32_t> ending_tokens(const Request& request, const std::vector<int32_t>& end_tokens) {
  std::vector<int32_t> ending = request.stop_tokens;
  if (!request.ignore_eos) ending.insert(ending.end(), end_tokens.begin(), end_tokens.end());
  sort_unique(ending);
  return ending;
}

constexpr auto kByToken = [](const auto& a, const auto& b) { return a.token < b.token; };

/// `biases` with the tokens of `ending` at -infinity. Both ascending.
std::vector<LogitBias> forbid(const std::vector<LogitBias>& biases, const std::vector<int32_t>& ending) {
  std::vector<LogitBias> all;
  for (const LogitBias& bias : biases)
    if (!std::binary_search(ending.begin(), ending.end(), bias.token)) all.push_back(bias);
  for (const int32_t token : ending) all.push_back({.token = token, .bias = -std::numeric_limits<float>::infinity()});
  std::sort(all.begin(), all.end(), kByToken);
  return all;
}

std::vector<uint32_t> token_mask(const std::vector<int32_t>& tokens, int32_t vocab) {
  if (tokens.empty()) return {};
  std::vector<uint32_t> mask(static_cast<size_t>(vocab + 31) / 32);
  for (const int32_t token : tokens) mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
  return mask;
}

/// The distinct tokens of the prompt, ascending, if the repetition penalty is to see them.
std::vector<int32_t> distinct_tokens(const Request& request) {
  if (request.sampling.repetition_penalty == 1) return {};
  std::vector<int32_t> tokens = request.prompt;
  sort_unique(tokens);
  return tokens;
}

}  // namespace

EngineLoop::SubmissionPtr EngineLoop::prepare(Request request, std::shared_ptr<RequestStream> stream, const Options& options) {
  auto submission = std::make_unique<Submission>();
  const SamplingParams& params = request.sampling;
  submission->sampling = {.seed = params.seed ? *params.seed : mix(options.seed ^ mix(stream->id())),
                          .temperature = params.temperature,
                          .top_k = params.top_k,
                          .top_p = params.top_p,
                          .min_p = params.min_p,
                          .repetition_penalty = params.repetition_penalty,
                          .frequency_penalty = params.frequency_penalty,
                          .presence_penalty = params.presence_penalty,
                          .penalty_tokens = {},
                          .biases = {},
                          .top_log_probs = std::max(0, request.log_probs)};
  submission->biases = params.logit_bias;
  std::sort(submission->biases.begin(), submission->biases.end(), kByToken);
  submission->ending = ending_tokens(request, options.end_tokens);
  if (request.min_tokens > 0) submission->early_biases = forbid(submission->biases, submission->ending);
  submission->allowed = token_mask(params.allowed_tokens, options.vocab);
  submission->penalised = params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
  submission->unfinished = request.choices;

  const std::vector<int32_t> distinct = distinct_tokens(request);
  const auto prompt = static_cast<int64_t>(request.prompt.size()), length = prompt + request.max_tokens;
  const auto penalties = std::min<int64_t>(options.vocab, static_cast<int64_t>(distinct.size()) + request.max_tokens);
  submission->sequences = std::vector<Sequence>(static_cast<size_t>(request.choices));
  for (int32_t choice = 0; choice < request.choices; ++choice) {
    Sequence& sequence = submission->sequences[static_cast<size_t>(choice)];
    sequence.submission = submission.get();
    sequence.choice = choice;
    sequence.prompt_tokens = prompt;
    sequence.tokens.reserve(static_cast<size_t>(length));
    sequence.blocks.reserve(options.layout.blocks_for(length));
    if (submission->penalised) sequence.penalties.reserve(static_cast<size_t>(penalties));
  }
  // The other choices get the prompt once it is computed: until then they are room that nothing was written to.
  Sequence& first = submission->sequences.front();
  first.tokens.assign(request.prompt.begin(), request.prompt.end());
  if (submission->penalised)
    for (const int32_t token : distinct) first.penalties.push_back({.token = token, .in_prompt = 1});
  stream->edit_captured().argmax_ids.reserve(static_cast<size_t>(request.max_tokens));
  request.prompt = {};
  submission->request = std::move(request);
  submission->stream = std::move(stream);
  return submission;
}

namespace {

const std::vector<LogitBias>& biases_of(const Sequence& sequence) {
  const Submission& submission = *sequence.submission;
  return sequence.generated < submission.request.min_tokens ? submission.early_biases : submission.biases;
}

}  // namespace

SamplingNeed sampling_need(const Sequence& sequence) {
  return {.extra_rows = sequence.generated == 0 ? sequence.submission->request.choices - 1 : 0,
          .penalty_tokens = static_cast<int64_t>(sequence.penalties.size()),
          .biases = static_cast<int64_t>(biases_of(sequence).size())};
}

RowSampling row_sampling(const Sequence& sequence, int32_t choice) {
  const Submission& submission = *sequence.submission;
  const std::vector<int32_t>& forced = submission.request.forced_ids;
  RowSampling sampling{.row = submission.sampling,
                       .penalty_tokens = sequence.penalties,
                       .biases = biases_of(sequence),
                       .allowed = submission.allowed};
  sampling.row.choice = choice;
  // A forced token's own log probability is wanted, not that of the sample.
  if (!forced.empty()) sampling.row.target = forced[static_cast<size_t>(sequence.generated)];
  return sampling;
}

void append_token(Sequence& sequence, int32_t token) {
  sequence.tokens.push_back(token);
  ++sequence.generated;
  if (!sequence.submission->penalised) return;
  auto at = std::lower_bound(sequence.penalties.begin(), sequence.penalties.end(), PenaltyToken{.token = token}, kByToken);
  if (at == sequence.penalties.end() || at->token != token) at = sequence.penalties.insert(at, {.token = token});
  ++at->generated;
}

}  // namespace weft

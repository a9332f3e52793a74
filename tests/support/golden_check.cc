#include "support/golden_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/config.h"

namespace weft::test {
namespace {

constexpr double kLogitBound = 1e-3;   // absolute
constexpr double kHiddenBound = 1e-3;  // of the spread of the residual stream
constexpr double kWeightBound = 1e-4;  // absolute; weights sum to 1 times a factor of at most 4

constexpr double kDenseRms = 0.05;
constexpr double kClearMargin = 0.1;  // of s: a smaller margin may flip by rounding

/// Largest difference; infinite where sizes differ or a value is not finite.
double worst(const std::vector<float>& ours, const std::vector<double>& golden) {
  if (ours.size() != golden.size()) return HUGE_VAL;
  double most = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const double difference = std::abs(ours[i] - golden[i]);
    most = std::isfinite(difference) ? std::max(most, difference) : HUGE_VAL;
  }
  return most;
}

template <typename T>
int64_t equal_count(const std::vector<T>& a, const std::vector<T>& b) {
  int64_t equal = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) equal += a[i] == b[i] ? 1 : 0;
  return equal;
}

template <typename T>
size_t argmax(const T* row, int64_t width) {
  return static_cast<size_t>(std::max_element(row, row + width) - row);
}

/// Collects one prompt's comparison into the report.
class ExactCheck {
 public:
  ExactCheck(const GoldenPrompt& golden, const Result& result, ExactReport& report)
      : golden_(golden), result_(result), report_(report) {}

  void run() {
    logits("last_logits", result_.captured.last_logits, golden_.last_logits);
    if (!golden_.gen_logits.empty()) logits("gen_logits", result_.captured.gen_logits, golden_.gen_logits);
    if (!golden_.logits.empty()) logits("logits", result_.captured.logits, golden_.logits);
    tokens();
    for (size_t i = 0; i < golden_.hidden.size(); ++i) hidden(i);
    for (size_t i = 0; i < golden_.router.size(); ++i) router(i);
  }

 private:
  void fail(const std::string& what) { report_.failures.push_back(golden_.name + ": " + what); }

  void logits(const char* what, const std::vector<float>& ours, const std::vector<double>& theirs) {
    const double difference = worst(ours, theirs);
    report_.worst_logit = std::max(report_.worst_logit, difference);
    if (difference >= kLogitBound) {
      fail(fmt::format("{} off by {:.2e} ({} values, golden {})", what, difference, ours.size(), theirs.size()));
    }
  }

  void tokens() {
    const int64_t equal = equal_count(result_.gen_ids, golden_.gen_ids), all = static_cast<int64_t>(golden_.gen_ids.size());
    report_.tokens += all;
    report_.tokens_equal += equal;
    if (result_.gen_ids != golden_.gen_ids) fail(fmt::format("{} of {} generated tokens equal", equal, all));
  }

  void hidden(size_t i) {
    const std::vector<double>& theirs = golden_.hidden[i];
    const double spread = mean_row_std(theirs, static_cast<int64_t>(theirs.size()));
    const double difference =
        i < result_.captured.hidden.size() ? worst(result_.captured.hidden[i], theirs) / spread : HUGE_VAL;
    report_.worst_hidden = std::max(report_.worst_hidden, difference);
    if (difference >= kHiddenBound) fail(fmt::format("hidden{} off by {:.2e} of its spread", i, difference));
  }

  void router(size_t i) {
    const GoldenPrompt::Router& theirs = golden_.router[i];
    report_.experts += static_cast<int64_t>(theirs.experts.size());
    if (i >= result_.captured.router.size() || result_.captured.router[i].layer != theirs.layer) {
      fail(fmt::format("router of layer {} not recorded", theirs.layer));
      return;
    }
    const StepResult::RouterRecord& ours = result_.captured.router[i];
    report_.experts_equal += equal_count(ours.experts, theirs.experts);
    if (ours.experts != theirs.experts) {
      fail(fmt::format("layer {}: {} of {} expert choices equal", theirs.layer, equal_count(ours.experts, theirs.experts),
                       theirs.experts.size()));
    }
    const double difference = worst(ours.weights, theirs.weights);
    report_.worst_weight = std::max(report_.worst_weight, difference);
    if (difference >= kWeightBound) fail(fmt::format("layer {}: router weights off by {:.2e}", theirs.layer, difference));
  }

  const GoldenPrompt& golden_;
  const Result& result_;
  ExactReport& report_;
};

/// Row errors of a bf16 run, pooled over everything that the golden has logits of.
struct RowErrors {
  double spread = 1;  ///< s
  int64_t width = 1;
  std::vector<double> row_error;
  double squares = 0;
  int64_t values = 0, same_argmax = 0;

  void add(const std::vector<float>& ours, const std::vector<double>& theirs) {
    for (size_t at = 0; at + static_cast<size_t>(width) <= theirs.size(); at += static_cast<size_t>(width)) {
      double most = 0;
      for (size_t i = at; i < at + static_cast<size_t>(width); ++i) {
        const double difference = (ours[i] - theirs[i]) / spread;
        most = std::isfinite(difference) ? std::max(most, std::abs(difference)) : HUGE_VAL;
        squares += difference * difference;
      }
      row_error.push_back(most);
      values += width;
      same_argmax += argmax(&ours[at], width) == argmax(&theirs[at], width) ? 1 : 0;
    }
  }
};

}  // namespace

bool is_supported(const std::string& architecture) {
  using enum Architecture;
  for (const Architecture known : {llama, qwen2, qwen3, qwen3_moe, glm4_moe, deepseek_v2, deepseek_v3}) {
    if (architecture == to_string(known)) return true;
  }
  return false;
}

EngineConfig engine_config(const GridPoint& point, const std::filesystem::path& model_dir, ComputeDType dtype,
                           const std::vector<Request>& requests) {
  const int64_t virtual_tokens = int64_t{point.block_size} * point.dcp;
  int64_t sum = 0, most = 0;
  for (const Request& request : requests) {
    const auto tokens = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
    const int64_t blocks = (tokens + virtual_tokens - 1) / virtual_tokens;
    sum += blocks;
    most = std::max(most, blocks);
  }
  EngineConfig config;
  config.model_dir = model_dir;
  config.tensor_parallel_size = point.tp;
  config.decode_context_parallel_size = point.dcp;
  config.cp_kv_cache_interleave_size = point.interleave;
  config.block_size = point.block_size;
  config.dtype = dtype;
  config.max_num_seqs = point.tight_pool ? 2 : 16;
  config.max_num_batched_tokens = point.budget;
  config.num_gpu_blocks_override = point.tight_pool ? most : sum;
  config.dcp_exchange = point.exchange;
  config.context_gather_tokens = point.gather_tokens;
  return config;
}

std::vector<Request> golden_requests(const Golden& golden, bool forced) {
  std::vector<Request> requests;
  for (const GoldenPrompt& known : golden.prompts) {
    Request request;
    request.label = known.name;
    request.prompt = known.input_ids;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    request.max_tokens = static_cast<int64_t>(known.gen_ids.size());
    if (forced) request.forced_ids = known.gen_ids;
    request.capture = {.all_logits = !known.logits.empty(),
                       .want_logits = true,
                       .record = {.hidden = !known.hidden.empty(), .router = !known.router.empty()}};
    requests.push_back(std::move(request));
  }
  return requests;
}

Result result_of(const RequestStream& stream) {
  Result result{.gen_ids = {}, .cached_tokens = stream.cached_tokens(), .captured = stream.captured()};
  if (!result.captured.argmax_ids.empty()) {
    result.gen_ids = result.captured.argmax_ids;
    return result;
  }
  for (const TokenEvent& event : stream.events()) {
    if (event.token >= 0) result.gen_ids.push_back(event.token);
  }
  return result;
}

std::vector<Result> run_requests(Engine& engine, const std::vector<Request>& requests, bool alone) {
  std::vector<Result> results;
  const auto run = [&](std::vector<Request> batch) {
    for (const auto& stream : engine.run(std::move(batch))) results.push_back(result_of(*stream));
  };
  if (!alone) {
    run(requests);
  } else {
    for (const Request& request : requests) run({request});
  }
  return results;
}

void ExactReport::add(const ExactReport& other) {
  worst_logit = std::max(worst_logit, other.worst_logit);
  worst_hidden = std::max(worst_hidden, other.worst_hidden);
  worst_weight = std::max(worst_weight, other.worst_weight);
  tokens += other.tokens;
  tokens_equal += other.tokens_equal;
  experts += other.experts;
  experts_equal += other.experts_equal;
  failures.insert(failures.end(), other.failures.begin(), other.failures.end());
}

ExactReport check_exact(const Golden& golden, const std::vector<Result>& results) {
  ExactReport report;
  if (results.size() != golden.prompts.size()) {
    report.failures.push_back(fmt::format("{} results for {} prompts", results.size(), golden.prompts.size()));
    return report;
  }
  for (size_t i = 0; i < results.size(); ++i) ExactCheck(golden.prompts[i], results[i], report).run();
  return report;
}

RoundedBounds bf16_bounds(const Golden& golden) {
  RoundedBounds bounds;
  if (!golden.sparse_mlp) bounds.rms = kDenseRms;
  return bounds;
}

RoundedReport check_rounded(const Golden& golden, const std::vector<Result>& results, const RoundedBounds& bounds) {
  RoundedReport report;
  RowErrors errors{.spread = golden.logit_std, .width = golden.vocab, .row_error = {}};
  for (size_t p = 0; p < golden.prompts.size(); ++p) {
    const GoldenPrompt& theirs = golden.prompts[p];
    const Result& ours = results.at(p);
    for (const auto& [mine, known] :
         {std::pair{&ours.captured.logits, &theirs.logits}, {&ours.captured.gen_logits, &theirs.gen_logits}}) {
      if (known->empty()) continue;
      if (mine->size() != known->size()) {
        report.failures.push_back(fmt::format("{}: {} logits, golden {}", theirs.name, mine->size(), known->size()));
        continue;
      }
      errors.add(*mine, *known);
    }
    if (ours.gen_ids.size() != theirs.gen_ids.size()) {
      report.failures.push_back(theirs.name + ": wrong number of generated tokens");
      continue;
    }
    for (size_t i = 0; i < theirs.gen_ids.size(); ++i) {
      const bool clear = theirs.gen_margin[i] >= kClearMargin * golden.logit_std;
      report.clear_misses += clear && ours.gen_ids[i] != theirs.gen_ids[i] ? 1 : 0;
    }
  }
  if (errors.row_error.empty()) {
    report.failures.push_back("nothing to compare");
    return report;
  }
  std::sort(errors.row_error.begin(), errors.row_error.end());
  const auto rows = static_cast<double>(errors.row_error.size());
  report.median_row_error = errors.row_error[errors.row_error.size() / 2];
  report.rms = std::sqrt(errors.squares / static_cast<double>(errors.values));
  report.same_argmax = static_cast<double>(errors.same_argmax) / rows;
  // Written so that a NaN fails.
  if (!(report.median_row_error <= bounds.median_row_error && report.rms <= bounds.rms &&
        report.same_argmax >= bounds.same_argmax)) {
    report.failures.push_back(fmt::format(
        "median row error {:.3f} (at most {}), rms {:.3f} (at most {}), same argmax {:.3f} (at least {})",
        report.median_row_error, bounds.median_row_error, report.rms, bounds.rms, report.same_argmax, bounds.same_argmax));
  }
  return report;
}

}  // namespace weft::test

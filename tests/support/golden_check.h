#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "support/golden_files.h"
#include "support/golden_grid.h"

namespace weft::test {

/// True if this version of Weft runs the architecture (a class name).
bool is_supported(const std::string& architecture);

/// The engine flags of one grid point. The pool holds what the prompts need and little more: nothing here asks the machine.
EngineConfig engine_config(const GridPoint& point, const std::filesystem::path& model_dir, ComputeDType dtype,
                           const std::vector<Request>& requests);

/// What to ask of the engine so that all that the golden knows can be compared: logits, rows and experts, and the continuation,
/// greedily or by feeding the golden's own tokens.
std::vector<Request> golden_requests(const Golden& golden, bool forced);

/// What came of one request.
struct Result {
  std::vector<int32_t> gen_ids;  ///< the largest logit of each step, whatever was fed
  int64_t cached_tokens = 0;     ///< of the prompt
  Captured captured;
};
Result result_of(const RequestStream& stream);

/// Runs the requests all at once, or one after the other.
std::vector<Result> run_requests(Engine& engine, const std::vector<Request>& requests, bool alone);

/// How far one float32 run is from the golden, and what of it is not acceptable.
struct ExactReport {
  double worst_logit = 0;   ///< largest |difference|
  double worst_hidden = 0;  ///< in standard deviations of the residual stream
  double worst_weight = 0;  ///< of a router weight
  int64_t tokens = 0, tokens_equal = 0;
  int64_t experts = 0, experts_equal = 0;
  std::vector<std::string> failures;  ///< empty: the run is as the golden

  void add(const ExactReport& other);
};
/// |logit difference| < 1e-3, hidden rows within 1e-3 of their spread, the same tokens and experts.
ExactReport check_exact(const Golden& golden, const std::vector<Result>& results);

/// What is acceptable of a run that rounds: a row's largest |difference| in the middle of all rows, the root of the mean
/// square, both in s, and the share of rows with the same largest logit. s: standard deviation of the golden's logits.
struct RoundedBounds {
  double median_row_error = 0.15, rms = 0.2, same_argmax = 0.88;
};
/// Computation in bf16. The rms is at most 0.05 for dense models.
RoundedBounds bf16_bounds(const Golden& golden);
/// A cache of fp8, everything else in float32.
constexpr RoundedBounds kFp8CacheBounds{.median_row_error = 0.40, .rms = 0.22, .same_argmax = 0.78};

/// How far one run that rounds, fed the golden's tokens, is from the golden.
struct RoundedReport {
  double median_row_error = 0;  ///< a row's largest |difference| / s
  double rms = 0;               ///< of all differences / s
  double same_argmax = 0;       ///< share of rows
  int64_t clear_misses = 0;     ///< generated tokens that differ although the golden's margin is 0.1 s or more
  std::vector<std::string> failures;
};
RoundedReport check_rounded(const Golden& golden, const std::vector<Result>& results, const RoundedBounds& bounds);
/// In bf16.
inline RoundedReport check_rounded(const Golden& golden, const std::vector<Result>& results) {
  return check_rounded(golden, results, bf16_bounds(golden));
}

}  // namespace weft::test

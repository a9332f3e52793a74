#include "text/jinja_sandbox.h"

#include <fmt/format.h>

namespace weft::jinja {
namespace {

constexpr int64_t kStepsBetweenLooks = 4096;

}  // namespace

void Sandbox::look() {
  if (steps_left_ < 0) throw OperationError(fmt::format("the template takes too long: more than {} steps", limits_.max_steps));
  if (std::chrono::steady_clock::now() > deadline_) {
    throw OperationError(fmt::format("the template takes too long: more than {} ms", limits_.max_time.count()));
  }
  next_look_ = steps_left_ - kStepsBetweenLooks;
}

void Sandbox::out_of_memory() const {
  throw OperationError(fmt::format("the template needs too much memory: more than {} bytes", limits_.max_memory_bytes));
}

void Sandbox::too_deep(Sandbox& box) {
  --box.depth_;  // As the level is not built, it is not left either.
  throw OperationError(fmt::format("the template nests too deeply: more than {} levels", kMaxDepth));
}

}  // namespace weft::jinja

#include "engine/replay.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/check.h"
#include "tools/commands.h"

namespace weft {
namespace {

std::string text_of(const ReplayReport::Difference& difference) {
  std::string text = fmt::format("step {} gives something else now", difference.step);
  if (difference.row >= 0)
    text += fmt::format(": row {} sampled token {}, which was {}", difference.row, difference.now, difference.recorded);
  if (difference.rank >= 0) text += fmt::format("; rank {} is the first with another checksum", difference.rank);
  return text;
}

}  // namespace

void run_replay(const Invocation& invocation) {
  const Flight flight = Flight::read(invocation.file);
  const bool quiet = invocation.has("quiet");
  const ReplayReport report = replay(flight, [&](const std::string& line) {
    if (!quiet) std::fprintf(stderr, "%s\n", line.c_str());
  });
  const std::string rebuilt =
      report.rebuilt_tokens == 0 ? "" : fmt::format(" ({} tokens of older KV computed again)", report.rebuilt_tokens);
  if (report.difference)
    throw SystemError("{} steps of {} gave the same{}; {}", report.steps, flight.steps.size(), rebuilt,
                      text_of(*report.difference));
  if (!report.failure.empty()) {
    throw SystemError("{} steps of {} gave the same{}; the next one fails{}: {}", report.steps, flight.steps.size(), rebuilt,
                      report.failed_then ? ", as it did when it was recorded" : ", which it did not when it was recorded",
                      report.failure);
  }
  std::printf("%lld of %zu steps gave the same%s%s\n", static_cast<long long>(report.steps), flight.steps.size(),
              rebuilt.c_str(),
              report.failed_then ? "; the last one, which failed when it was recorded, does not fail here" : "");
}

}  // namespace weft

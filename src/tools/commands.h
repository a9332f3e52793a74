#pragma once

#include "tools/command_line.h"

namespace weft {

/// The commands that do work. Results go to standard output, progress and warnings to standard error. Throw UserError and
/// SystemError.
void run_generate(const Invocation& invocation);
void run_eval(const Invocation& invocation);
void run_serve(const Invocation& invocation);
void run_bench_serve(const Invocation& invocation);
void run_inspect(const Invocation& invocation);
void run_replay(const Invocation& invocation);

/// Throws UserError where one of the requests can never run: read from the model's config alone, so before any weights.
void require_possible(const EngineConfig& config, const std::vector<Request>& requests);
/// "5,6,7" as token ids. Throws UserError.
std::vector<int32_t> parse_token_ids(const std::string& text);

}  // namespace weft

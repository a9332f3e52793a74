#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "model/safetensors.h"

namespace weft {

/// Reads the prompts of `weft eval`, which become greedy requests that capture logits and do not end early: {"prompts":
/// [{"name", "input_ids", "generate", "forced_ids", "all_logits", "record"}]}, of which name and input_ids must be there.
/// `generate` defaults to the length of forced_ids, or 0. Throws UserError, one line with `path`, for anything else, unknown
/// fields included. Token ids are checked against the vocabulary by the engine.
std::vector<Request> parse_prompts(std::string_view text, std::string_view path);
/// Reads a file of prompts, at most 64 MiB.
std::vector<Request> load_prompts(const std::filesystem::path& path);

/// Adds what came of a request under the names of the golden data: NAME.last_logits, NAME.gen_ids,
/// NAME.router.layer1.experts, ...
void add_result(const ModelConfig& model, const Request& request, const Captured& captured, SafetensorsWriter& out);

}  // namespace weft

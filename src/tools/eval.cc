#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "base/check.h"
#include "engine/engine.h"
#include "model/safetensors.h"
#include "tools/commands.h"
#include "tools/prompts.h"

namespace weft {
namespace {

/// Fails before the work rather than after it.
void require_writable_folder(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  if (!file.has_filename()) throw UserError("--out must name a file: got {}", file.string());
  if (std::filesystem::is_directory(file, error)) throw UserError("--out must be a file, this is a folder: {}", file.string());
  if (!std::filesystem::is_directory(folder, error))
    throw UserError("--out is in a folder that does not exist: {}", file.string());
}

}  // namespace

void run_eval(const Invocation& invocation) {
  const std::vector<Request> requests = load_prompts(invocation["prompts"]);
  const std::filesystem::path out_path = invocation["out"];
  require_writable_folder(out_path);

  require_possible(invocation.engine, requests);

  Engine engine(invocation.engine, {}, invocation.make_ranks);
  const auto began = std::chrono::steady_clock::now();
  const std::vector<std::shared_ptr<RequestStream>> streams = engine.run(requests);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();

  SafetensorsWriter out;
  size_t read = 0, generated = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    add_result(engine.model(), requests[i], streams[i]->captured(), out);
    read += requests[i].prompt.size();
    generated += streams[i]->captured().argmax_ids.size();
  }
  out.write(out_path);
  std::puts(fmt::format("{} prompts, {} tokens read and {} generated in {:.2f} s, results in {}", requests.size(), read,
                        generated, seconds, out_path.string())
                .c_str());
}

}  // namespace weft

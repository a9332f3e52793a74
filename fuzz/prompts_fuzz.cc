// Any bytes as the prompts of `weft eval`: a list of prompts that keeps the contract, or a UserError.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "tools/prompts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto prompts = weft::parse_prompts({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (prompts.empty()) std::abort();
    for (const weft::Request& request : prompts) {
      const bool forced = request.forced_ids.empty() || request.forced_ids.size() == static_cast<size_t>(request.max_tokens);
      if (request.label.empty() || request.prompt.empty() || request.max_tokens < 0 || !forced) std::abort();
    }
  } catch (const weft::UserError&) {
  }
  return 0;
}

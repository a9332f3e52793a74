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
    for (const weft::Prompt& prompt : prompts) {
      const bool forced_enough = prompt.forced_ids.empty() || prompt.forced_ids.size() >= static_cast<size_t>(prompt.generate);
      if (prompt.name.empty() || prompt.input_ids.empty() || prompt.generate < 0 || !forced_enough) std::abort();
    }
  } catch (const weft::UserError&) {
  }
  return 0;
}

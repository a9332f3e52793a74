// Whatever a config.json holds, it is either refused with a UserError, or describes a model that can be computed with.

#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "model/config.h"
#include "model/families.h"

namespace {

void check(const weft::ModelConfig& config) {
  if (config.layers < 1 || config.q_heads < 1 || config.kv_heads < 1 || config.kv_heads > config.q_heads) std::abort();
  if (config.k_dim() < 1 || config.v_dim() < 1 || !std::isfinite(config.softmax_scale())) std::abort();
  for (const double frequency : config.rope.inv_freq()) {
    if (!std::isfinite(frequency) || frequency <= 0) std::abort();
  }
  if (!std::isfinite(config.rope.cos_factor())) std::abort();
  // Large models are lawful; listing them here would only be slow.
  if (static_cast<int64_t>(config.layers) * (config.moe.num_experts + 1) > 1000) return;
  uint64_t bytes = 0;
  for (const weft::ParamSpec& spec : weft::parameters(config)) {
    uint64_t size = 4;
    for (const int64_t n : spec.shape) {
      if (n < 1 || __builtin_mul_overflow(size, static_cast<uint64_t>(n), &size)) std::abort();
    }
    if (__builtin_add_overflow(bytes, size, &bytes)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check(weft::parse_config({reinterpret_cast<const char*>(data), size}, "fuzz"));
  } catch (const weft::UserError&) {
  }
  return 0;
}

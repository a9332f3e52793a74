#include "layout/rank_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"

namespace weft {
namespace {

bool legal(int q_heads, int kv_heads, int tp) {
  return tp >= 1 && q_heads % tp == 0 && (tp % kv_heads == 0 || kv_heads % tp == 0);
}

std::vector<int> divisors(int n) {
  std::vector<int> out;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

void require_at_least_one(const char* flag, int value) {
  if (value < 1) throw UserError("{} must be at least 1: got {}", flag, value);
}

}  // namespace

RankGrid::RankGrid(const Spec& spec) : spec_(spec) {
  WEFT_CHECK(spec.q_heads >= 1 && spec.kv_heads >= 1) << spec.q_heads << " query heads, " << spec.kv_heads << " KV heads";
  require_at_least_one("--tensor-parallel-size", spec.tp);
  require_at_least_one("--decode-context-parallel-size", spec.dcp);
  require_at_least_one("--cp-kv-cache-interleave-size", spec.interleave);
  require_at_least_one("--block-size", spec.block_tokens);
  if (!legal(spec.q_heads, spec.kv_heads, spec.tp)) {
    throw UserError(
        "--tensor-parallel-size must divide the query heads, and divide or be divided by the KV heads: tp {}, query heads {}, "
        "KV heads {}, allowed {}",
        spec.tp, spec.q_heads, spec.kv_heads, fmt::join(legal_tp(spec.q_heads, spec.kv_heads, spec.q_heads), ", "));
  }
  if (kv_copies() % spec.dcp != 0) {
    throw UserError(
        "--decode-context-parallel-size must divide the copies of a KV head: dcp {}, tp {}, KV heads {}, so each KV head has "
        "{} {}; allowed at this tp: {}",
        spec.dcp, spec.tp, spec.kv_heads, kv_copies(), kv_copies() == 1 ? "copy" : "copies",
        fmt::join(legal_dcp(spec.q_heads, spec.kv_heads, spec.tp), ", "));
  }
  if (spec.block_tokens % spec.interleave != 0) {
    throw UserError(
        "--block-size must be a multiple of --cp-kv-cache-interleave-size: block size {}, interleave size {}; allowed "
        "interleave sizes for this block size: {}",
        spec.block_tokens, spec.interleave, fmt::join(divisors(spec.block_tokens), ", "));
  }
}

Range RankGrid::q_heads_of(int tp_rank) const {
  const int64_t begin = int64_t{tp_rank} * rank_q_heads();
  return {begin, begin + rank_q_heads()};
}

Range RankGrid::kv_heads_of(int tp_rank) const {
  const int64_t begin = spec_.tp < spec_.kv_heads ? int64_t{tp_rank} * rank_kv_heads() : int64_t{tp_rank} / kv_copies();
  return {begin, begin + rank_kv_heads()};
}

std::vector<int> RankGrid::legal_dcp(int q_heads, int kv_heads, int tp) {
  if (!legal(q_heads, kv_heads, tp)) return {};
  return divisors(tp < kv_heads ? 1 : tp / kv_heads);
}

std::vector<int> RankGrid::legal_tp(int q_heads, int kv_heads, int limit) {
  std::vector<int> out;
  for (int tp = 1; tp <= std::min(limit, q_heads); ++tp)
    if (legal(q_heads, kv_heads, tp)) out.push_back(tp);
  return out;
}

}  // namespace weft

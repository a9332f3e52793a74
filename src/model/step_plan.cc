#include "model/step_plan.h"

namespace weft {
namespace {

// FNV-1a over 8-byte words: cheap, and any single changed field changes it.
uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t hash) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<uint64_t>(bytes[i])) * 0x100000001b3u;
  return hash;
}

}  // namespace

uint64_t StepPlan::compute_checksum() const {
  static_assert(sizeof(PlanHeader) % 8 == 0, "the arrays begin at a whole word");
  PlanHeader unsealed = header();
  unsealed.checksum = 0;
  const uint64_t of_header = hash_bytes(std::as_bytes(std::span(&unsealed, 1)), 0xcbf29ce484222325u);
  return hash_bytes(std::span(block_).subspan(sizeof(PlanHeader)), of_header);
}

void StepPlan::seal() {
  header().bytes = static_cast<uint32_t>(block_.size());
  header().checksum = compute_checksum();
}

void StepPlan::receive(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(PlanHeader)) throw SystemError("step plan is too short: {} bytes", bytes.size());
  block_.assign(bytes.begin(), bytes.end());
  if (header().bytes != bytes.size())
    throw SystemError("step plan has {} bytes, its header says {}", bytes.size(), header().bytes);
  if (header().checksum != compute_checksum()) throw SystemError("step plan {} arrived damaged", header().step);
}

StepPlan StepPlan::from_bytes(std::span<const std::byte> bytes) {
  StepPlan plan;
  plan.receive(bytes);
  return plan;
}

}  // namespace weft

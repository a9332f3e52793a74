#include "support/test_memory.h"

#include <map>

namespace weft::test {
namespace {

constexpr std::align_val_t kAlignment{64};

/// Blocks by their first byte. Tests take and give back on the main thread.
std::map<std::byte*, size_t>& blocks() {
  static auto& all = *new std::map<std::byte*, size_t>;  // outlives everything static that still holds memory
  return all;
}

}  // namespace

void* take_test_memory(size_t bytes) {
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  blocks()[data] = bytes;
  return data;
}

void give_back_test_memory(void* data) noexcept {
  blocks().erase(static_cast<std::byte*>(data));
  ::operator delete(data, kAlignment);
}

TestBlock test_block_of(const void* pointer) {
  auto* at = const_cast<std::byte*>(static_cast<const std::byte*>(pointer));
  const auto next = blocks().upper_bound(at);
  if (next == blocks().begin()) return {};
  const auto& [data, bytes] = *std::prev(next);
  return at < data + bytes ? TestBlock{data, bytes} : TestBlock{};
}

}  // namespace weft::test

#include "support/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
thread_local int64_t allocations = 0;
std::atomic<int64_t> all_allocations{0};

void* counted_or_null(void* memory) {
  ++allocations;
  all_allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}
void* counted(void* memory) {
  if (counted_or_null(memory) == nullptr) throw std::bad_alloc();
  return memory;
}
size_t rounded(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }
}  // namespace

namespace weft::test {
int64_t allocations_of_this_thread() { return allocations; }
int64_t allocations_of_all_threads() { return all_allocations.load(std::memory_order_relaxed); }
}  // namespace weft::test

// The array forms end up here. Not inlined, lest compilers pair an operator with malloc or free.
[[gnu::noinline]] void* operator new(size_t bytes) { return counted(std::malloc(bytes == 0 ? 1 : bytes)); }
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto n = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(n, rounded(bytes == 0 ? 1 : bytes, n)));
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return counted_or_null(std::malloc(bytes == 0 ? 1 : bytes));
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  const auto n = static_cast<size_t>(alignment);
  return counted_or_null(std::aligned_alloc(n, rounded(bytes == 0 ? 1 : bytes, n)));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

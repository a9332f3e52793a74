#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace weft::test {

/// Host memory that test data for operators lies in, so that a rank with memory of its own can be shown a copy of it (see
/// MirroredOps): any pointer into it leads to the whole block.
struct TestBlock {
  std::byte* data = nullptr;
  size_t bytes = 0;
};
/// The block that `pointer` points into; none: data is null.
TestBlock test_block_of(const void* pointer);

/// Aligned to 64 bytes.
void* take_test_memory(size_t bytes);
void give_back_test_memory(void* data) noexcept;

template <typename T>
struct TestAllocator {
  using value_type = T;
  TestAllocator() = default;
  template <typename U>
  TestAllocator(const TestAllocator<U>&) {}  // NOLINT(google-explicit-constructor): as allocators do
  T* allocate(size_t count) { return static_cast<T*>(take_test_memory(count * sizeof(T))); }
  void deallocate(T* data, size_t) noexcept { give_back_test_memory(data); }
  bool operator==(const TestAllocator&) const = default;
};

/// What tests give to operators, and get from them.
template <typename T>
using Array = std::vector<T, TestAllocator<T>>;

}  // namespace weft::test

#pragma once

namespace weft {

/// Wakes the server's io thread from another thread: a counter in the kernel that the io thread waits for.
class Wake {
 public:
  Wake();
  ~Wake();
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  /// Any thread. Neither blocks nor allocates.
  void ring() const noexcept;
  /// Becomes readable when rung.
  int descriptor() const { return descriptor_; }
  /// Forgets all rings so far. Does not block.
  void clear() const noexcept;

 private:
  int descriptor_;
};

}  // namespace weft

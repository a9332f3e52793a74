#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/tensor.h"
#include "ops/cuda/launch_plan.h"

namespace weft::cuda {

/// One GPU as a rank uses it: a stream of its own, in which everything runs in program order, and its memory.
///
/// Thread: the rank's own; every call makes the GPU the thread's current one.
class Device {
 public:
  /// Throws UserError where there is no such GPU or it is older than compute capability 8.0.
  explicit Device(int number);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void make_current() const;
  cudaStream_t stream() const { return stream_; }
  const DeviceTraits& traits() const { return traits_; }

  /// Zeroed, in stream order. Throws SystemError when there is no more.
  Buffer allocate(size_t bytes) const;
  /// Returns when everything asked for is done.
  void synchronize() const;

 private:
  int number_;
  cudaStream_t stream_ = nullptr;
  DeviceTraits traits_;
};

/// Memory of a device that grows to the largest request and is then kept, so that a steady stream of calls takes none. Growing
/// waits until nothing uses what was there.
class Scratch {
 public:
  explicit Scratch(const Device& device) : device_(device) {}
  std::byte* at_least(size_t bytes);
  size_t bytes() const { return buffer_.bytes(); }

 private:
  const Device& device_;
  Buffer buffer_;
};

/// Bytes on their way from the host to a device: copied at once into pinned memory, from where the device fetches them in
/// stream order. Two halves take turns; one is written again when what it held has arrived.
class UploadRing {
 public:
  static constexpr size_t kHalf = size_t{4} << 20;

  explicit UploadRing(const Device& device);
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  /// Pinned memory of at most kHalf bytes, to be filled and sent before the next call.
  std::byte* take(size_t bytes);
  /// Sends what was taken last.
  void send(std::byte* target);
  /// Copies `bytes` from the host, in as many pieces as it takes.
  void copy(const void* host, size_t bytes, std::byte* target);

 private:
  const Device& device_;
  std::byte* pinned_ = nullptr;
  std::array<cudaEvent_t, 2> sent_{};
  int half_ = 0;
  size_t used_ = 0;  ///< of the half
  std::byte* taken_ = nullptr;
  size_t taken_bytes_ = 0;
};

}  // namespace weft::cuda

#include "ops/cuda/memory.h"

#include <algorithm>
#include <cstring>

#include "ops/cuda/error.h"

namespace weft::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would be blamed
  throw SystemError("CUDA: {} failed: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void check(cudaError_t status, const char* what, size_t value) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw SystemError("CUDA: {} of {} failed: {} ({})", what, value, cudaGetErrorString(status), cudaGetErrorName(status));
}

Device::Device(int number) : number_(number) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) throw UserError("no CUDA device can be used here: {}", cudaGetErrorString(status));
  if (number < 0 || number >= count) throw UserError("there is no CUDA device {}: this machine has {}", number, count);
  int major = 0, minor = 0, processors = 0, shared_bytes = 0;
  const auto attribute = [&](int* value, cudaDeviceAttr which) {
    check(cudaDeviceGetAttribute(value, which, number), "cudaDeviceGetAttribute", static_cast<size_t>(which));
  };
  attribute(&major, cudaDevAttrComputeCapabilityMajor);
  attribute(&minor, cudaDevAttrComputeCapabilityMinor);
  attribute(&processors, cudaDevAttrMultiProcessorCount);
  attribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (major < 8)
    throw UserError("CUDA device {} has compute capability {}.{}, and 8.0 or newer is needed", number, major, minor);
  // A kilobyte of each block's shared memory is the system's, and a little the kernels' own.
  traits_ = {.processors = processors, .shared_bytes = static_cast<size_t>(shared_bytes) - 2048};
  make_current();
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

Device::~Device() {
  cudaSetDevice(number_);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void Device::make_current() const { check(cudaSetDevice(number_), "cudaSetDevice", static_cast<size_t>(number_)); }

Buffer Device::allocate(size_t bytes) const {
  if (bytes == 0) return {};
  make_current();
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc", bytes);
  Buffer buffer(data, bytes, [number = number_](void* memory) {
    cudaSetDevice(number);
    cudaFree(memory);  // waits for what still uses it
  });
  check(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync", bytes);
  return buffer;
}

void Device::synchronize() const {
  make_current();
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

std::byte* Scratch::at_least(size_t bytes) {
  if (bytes > buffer_.bytes()) {
    device_.synchronize();
    buffer_ = {};
    buffer_ = device_.allocate(bytes);
  }
  return buffer_.data();
}

// --- uploads ------------------------------------------------------------------------------------------------------------

UploadRing::UploadRing(const Device& device) : device_(device) {
  device_.make_current();
  void* pinned = nullptr;
  check(cudaMallocHost(&pinned, 2 * kHalf), "cudaMallocHost", 2 * kHalf);
  pinned_ = static_cast<std::byte*>(pinned);
  for (cudaEvent_t& event : sent_) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

UploadRing::~UploadRing() {
  cudaStreamSynchronize(device_.stream());
  for (cudaEvent_t event : sent_) cudaEventDestroy(event);
  cudaFreeHost(pinned_);
}

std::byte* UploadRing::take(size_t bytes) {
  WEFT_CHECK_LE(bytes, kHalf);
  if (used_ + bytes > kHalf) {
    check(cudaEventRecord(sent_[half_], device_.stream()), "cudaEventRecord");
    half_ = 1 - half_;
    used_ = 0;
    check(cudaEventSynchronize(sent_[half_]), "cudaEventSynchronize");
  }
  taken_ = pinned_ + static_cast<size_t>(half_) * kHalf + used_;
  taken_bytes_ = bytes;
  used_ += (bytes + 63) / 64 * 64;
  return taken_;
}

void UploadRing::send(std::byte* target) {
  check(cudaMemcpyAsync(target, taken_, taken_bytes_, cudaMemcpyHostToDevice, device_.stream()), "cudaMemcpyAsync",
        taken_bytes_);
}

void UploadRing::copy(const void* host, size_t bytes, std::byte* target) {
  const auto* from = static_cast<const std::byte*>(host);
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(kHalf, bytes - done);
    std::memcpy(take(piece), from + done, piece);
    send(target + done);
    done += piece;
  }
}

}  // namespace weft::cuda

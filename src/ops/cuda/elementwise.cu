#include "ops/cuda/elements.cuh"
#include "ops/cuda/params.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks of a launch that walks over its elements: enough for any device, and each thread still has some.
constexpr int64_t kMostBlocks = 4096;

__device__ int64_t thread_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t thread_count() { return int64_t{gridDim.x} * blockDim.x; }

unsigned walking_blocks(int64_t elements) {
  const int64_t blocks = (elements + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

// --- copies -----------------------------------------------------------------------------------------------------------

template <typename To, typename From>
__device__ To converted(From x) {
  return To(to_float(x));
}
template <>
__device__ uint8_t converted(uint8_t x) {
  return x;
}
template <>
__device__ uint16_t converted(uint16_t x) {
  return x;
}
template <>
__device__ uint32_t converted(uint32_t x) {
  return x;
}
template <>
__device__ uint64_t converted(uint64_t x) {
  return x;
}

template <typename From, typename To>
__global__ void copy_elements(CopyParams p, int64_t count) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    int64_t rest = i, from = 0, to = 0;
    for (int d = 3; d >= 0; --d) {
      const int64_t at = rest % p.sizes[d];
      rest /= p.sizes[d];
      from += at * p.in_strides[d];
      to += at * p.out_strides[d];
    }
    static_cast<To*>(p.out)[to] = converted<To>(static_cast<const From*>(p.in)[from]);
  }
}

template <typename Word>
__device__ void copy_words(const CopyRunsParams::Run& run) {
  const auto* from = static_cast<const Word*>(run.source);
  auto* to = static_cast<Word*>(run.target);
  const auto words = static_cast<int64_t>(run.bytes / sizeof(Word));
  for (int64_t i = thread_index(); i < words; i += thread_count()) to[i] = from[i];
}

/// One run for each blockIdx.y, in words as large as its ends and its size allow.
__global__ void copy_runs(const __grid_constant__ CopyRunsParams p) {
  const CopyRunsParams::Run& run = p.runs[blockIdx.y];
  const size_t odd = reinterpret_cast<size_t>(run.target) | reinterpret_cast<size_t>(run.source) | run.bytes;
  if (odd % 16 == 0)
    copy_words<uint4>(run);
  else if (odd % 4 == 0)
    copy_words<uint32_t>(run);
  else
    copy_words<uint8_t>(run);
}

template <typename From, typename To>
__global__ void embed_rows(EmbedParams p) {
  const int64_t t = blockIdx.x, row = p.ids[t] - p.first_row;
  const bool here = row >= 0 && row < p.table_rows;
  const From* from = static_cast<const From*>(p.table) + row * p.table_stride;
  To* to = static_cast<To*>(p.out) + t * p.out_stride;
  for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) to[i] = here ? To(to_float(from[i])) : To(0.0f);
}

// --- norms ------------------------------------------------------------------------------------------------------------

/// One head of one row for each block. A thread writes the elements that it has read, so results may replace operands.
template <typename T>
__global__ void rms_norm(NormParams p) {
  const int64_t row = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
  const auto at = [&](const auto& tensor) { return row * tensor.row_stride + head * tensor.head_stride; };
  const T* x = static_cast<const T*>(p.x.data) + at(p.x);
  if (p.residual.data != nullptr) {
    T* residual = static_cast<T*>(p.residual.data) + at(p.residual);
    const T* delta = static_cast<const T*>(p.delta.data) + at(p.delta);
    for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) residual[i] = T(to_float(residual[i]) + to_float(delta[i]));
    x = residual;
  }
  float squares = 0;
  for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) squares += to_float(x[i]) * to_float(x[i]);
  __shared__ float shared[kThreads / kWarp];
  squares = block_sum(squares, shared);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(p.width) + p.eps);
  T* out = static_cast<T*>(p.out.data) + at(p.out);
  for (int64_t i = threadIdx.x; i < p.width; i += blockDim.x) out[i] = T(to_float(x[i]) * scale * p.weight[i]);
}

// --- sums and gates ---------------------------------------------------------------------------------------------------

template <typename T>
__global__ void add_rows(AddParams p) {
  for (int64_t i = thread_index(); i < p.rows * p.width; i += thread_count()) {
    const int64_t row = i / p.width, column = i % p.width;
    T& x = static_cast<T*>(p.x)[row * p.x_stride + column];
    x = T(to_float(x) + to_float(static_cast<const T*>(p.y)[row * p.y_stride + column]));
  }
}

template <typename T>
__global__ void silu_mul(SiluMulParams p) {
  for (int64_t i = thread_index(); i < p.rows * p.width; i += thread_count()) {
    const int64_t row = i / p.width, column = i % p.width;
    const T* in = static_cast<const T*>(p.gate_up) + row * p.in_stride + column;
    const float gate = to_float(in[0]);
    static_cast<T*>(p.out)[row * p.out_stride + column] = T(gate / (1.0f + expf(-gate)) * to_float(in[p.width]));
  }
}

template <typename T>
__global__ void add_bias(AddBiasParams p) {
  for (int64_t i = thread_index(); i < p.rows * p.width; i += thread_count()) {
    const int64_t row = i / p.width, column = i % p.width;
    static_cast<T*>(p.out)[row * p.out_stride + column] = T(p.x[i] + p.bias[column]);
  }
}

}  // namespace

cudaError_t launch_copy(const CopyParams& p, cudaStream_t stream) {
  const int64_t count = p.sizes[0] * p.sizes[1] * p.sizes[2] * p.sizes[3];
  if (count == 0) return cudaSuccess;
  const unsigned blocks = walking_blocks(count);
  if (p.from != p.to) {
    if (p.from == DType::bf16)
      copy_elements<bf16, float><<<blocks, kThreads, 0, stream>>>(p, count);
    else
      copy_elements<float, bf16><<<blocks, kThreads, 0, stream>>>(p, count);
  } else {
    switch (size_of(p.from)) {
      case 1:
        copy_elements<uint8_t, uint8_t><<<blocks, kThreads, 0, stream>>>(p, count);
        break;
      case 2:
        copy_elements<uint16_t, uint16_t><<<blocks, kThreads, 0, stream>>>(p, count);
        break;
      case 4:
        copy_elements<uint32_t, uint32_t><<<blocks, kThreads, 0, stream>>>(p, count);
        break;
      default:
        copy_elements<uint64_t, uint64_t><<<blocks, kThreads, 0, stream>>>(p, count);
    }
  }
  return cudaGetLastError();
}

cudaError_t launch_copy_runs(const CopyRunsParams& p, cudaStream_t stream) {
  if (p.count == 0 || p.longest == 0) return cudaSuccess;
  // 16 KiB for each block at least, and few blocks for each of many runs.
  const int64_t most = kMostBlocks / p.count + 1, wanted = static_cast<int64_t>(p.longest / 16384 + 1);
  copy_runs<<<dim3(static_cast<unsigned>(wanted < most ? wanted : most), static_cast<unsigned>(p.count)), kThreads, 0,
              stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_embed(const EmbedParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(p.rows);
  return with_compute_type(p.from, [&](auto from) {
    with_compute_type(p.to, [&](auto to) { embed_rows<decltype(from), decltype(to)><<<blocks, kThreads, 0, stream>>>(p); });
  });
}

cudaError_t launch_rms_norm(const NormParams& p, cudaStream_t stream) {
  if (p.rows * p.heads == 0 || p.width == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(p.rows * p.heads);
  const int threads = p.width <= 256 ? kWarp : kThreads;  // a warp does with heads
  return with_compute_type(p.dtype, [&](auto type) { rms_norm<decltype(type)><<<blocks, threads, 0, stream>>>(p); });
}

cudaError_t launch_add(const AddParams& p, cudaStream_t stream) {
  if (p.rows * p.width == 0) return cudaSuccess;
  const unsigned blocks = walking_blocks(p.rows * p.width);
  return with_compute_type(p.dtype, [&](auto type) { add_rows<decltype(type)><<<blocks, kThreads, 0, stream>>>(p); });
}

cudaError_t launch_silu_mul(const SiluMulParams& p, cudaStream_t stream) {
  if (p.rows * p.width == 0) return cudaSuccess;
  const unsigned blocks = walking_blocks(p.rows * p.width);
  return with_compute_type(p.dtype, [&](auto type) { silu_mul<decltype(type)><<<blocks, kThreads, 0, stream>>>(p); });
}

cudaError_t launch_add_bias(const AddBiasParams& p, cudaStream_t stream) {
  if (p.rows * p.width == 0) return cudaSuccess;
  const unsigned blocks = walking_blocks(p.rows * p.width);
  return with_compute_type(p.to, [&](auto type) { add_bias<decltype(type)><<<blocks, kThreads, 0, stream>>>(p); });
}

}  // namespace weft::cuda

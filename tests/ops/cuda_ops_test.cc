// What the CUDA operators have of their own: errors, and memory. Needs a GPU; part of weft_device_test.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

size_t free_bytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

TEST(CudaOps, ADeviceThatIsNotThereIsAUserErrorThatSaysHowManyThereAre) {
  try {
    make_cuda_ops(99);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no CUDA device 99"), std::string::npos) << error.what();
  }
}

TEST(CudaOps, MoreMemoryThanThereIsIsASystemErrorWithTheBytesAndTheDeviceStaysUsable) {
  const auto ops = make_cuda_ops(0);
  try {
    ops->allocate(size_t{1} << 50);
    FAIL() << "no error";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("cudaMalloc of 1125899906842624"), std::string::npos) << error.what();
  }
  const Buffer x = ops->allocate(64 * sizeof(float));
  const View row(x.data(), DType::f32, {1, 64});
  const std::vector<float> ones(64, 1);
  ops->upload(ones.data(), row);
  ops->add(row, row);
  std::vector<float> got(64);
  ops->download(row, got.data());
  EXPECT_EQ(got, std::vector<float>(64, 2));
}

TEST(CudaOps, AttentionWithinItsLimitsTakesNoMoreMemory) {
  constexpr int64_t kHeads = 16, kDim = 128, kBlock = 16, kMostRows = 64, kMostKeys = 20'000;
  const auto ops = make_cuda_ops(0);
  const AttentionLimits limits{
      .rows = kMostRows, .heads = kHeads, .kv_heads = 2, .k_dim = kDim, .v_dim = kDim, .keys = kMostKeys};
  ops->reserve(limits);
  const size_t plane_bytes = static_cast<size_t>(kMostKeys) * 2 * kDim * 2;
  const Buffer keys_plane = ops->allocate(plane_bytes), values_plane = ops->allocate(plane_bytes);
  const Buffer tables = ops->allocate(kMostKeys / kBlock * 4);
  const Buffer q = ops->allocate(kMostRows * kHeads * kDim * 2), out = ops->allocate(kMostRows * kHeads * kDim * 2);
  const Buffer lse = ops->allocate(kMostRows * kHeads * 4), seq_of = ops->allocate(kMostRows * 4);
  const Buffer begin = ops->allocate(kMostRows * 4), end = ops->allocate(kMostRows * 4);
  const auto ints = [](const Buffer& buffer) { return reinterpret_cast<const int32_t*>(buffer.data()); };
  KvView kv{.k = keys_plane.data(), .v = values_plane.data(), .k_stride = 2 * kDim, .v_stride = 2 * kDim, .slots = kMostKeys};
  kv.kv_heads = 2, kv.k_dim = kv.v_dim = kDim, kv.block_tokens = kBlock;
  const auto attend = [&](int64_t rows, int64_t keys, bool invariant) {
    const std::vector<int32_t> ends(static_cast<size_t>(rows), static_cast<int32_t>(keys));
    ops->upload(ends.data(), View(end.data(), DType::i32, {rows}));
    ops->attend({.q = ConstView(q.data(), DType::bf16, {1, rows, kHeads, kDim}),
                 .paged = {.kv = kv, .tables = ints(tables), .table_stride = kMostKeys / kBlock},
                 .rows = {},
                 .seq_of = ints(seq_of),
                 .begin = ints(begin),
                 .end = ints(end),
                 .invariant = invariant,
                 .out = View(out.data(), DType::bf16, {1, rows, kHeads, kDim}),
                 .lse = View(lse.data(), DType::f32, {1, rows, kHeads})});
    ops->synchronize();
  };
  attend(1, 1, false);  // what the driver takes for a first launch
  attend(1, 1, true);
  const size_t before = free_bytes();
  for (const int64_t rows : {int64_t{1}, int64_t{3}, kMostRows})
    for (const bool invariant : {false, true}) attend(rows, kMostKeys, invariant);
  EXPECT_EQ(free_bytes(), before);
}

}  // namespace
}  // namespace weft

// Rows of the cache, as numbers and as bytes.

#include <cstring>

#include "conformance/backend.h"
#include "conformance/tensors.h"

namespace weft {
namespace {

using namespace test;

TEST(GatherRows, CopiesSlotsAndGivesZerosForPadding) {
  for_each_case(
      [](Gen& gen) {
        const DType dtype = gen.pick({DType::f32, DType::bf16}), out_dtype = gen.pick({DType::f32, DType::bf16});
        const bool latent = gen.chance(0.4);
        const int64_t slots = gen.in(1, 50), kv_heads = latent ? 1 : gen.in(1, 3), k_dim = gen.pick({8, 20}),
                      rows = gen.in(0, 90);
        const int64_t v_dim = latent ? k_dim - 4 : gen.pick({4, 16});
        Tensors tensors;
        const View k = tensors.random(gen, dtype, {slots, kv_heads, k_dim});
        const View v = latent ? k : tensors.random(gen, dtype, {slots, kv_heads, v_dim});
        const KvView kv{.k = k.data(),
                        .v = v.data(),
                        .k_stride = k.stride(0),
                        .v_stride = v.stride(0),
                        .slots = slots,
                        .kv_heads = static_cast<int>(kv_heads),
                        .k_dim = static_cast<int>(k_dim),
                        .v_dim = static_cast<int>(v_dim),
                        .dtype = dtype};
        Array<int32_t> wanted;
        for (int64_t i = 0; i < rows; ++i) wanted.push_back(static_cast<int32_t>(gen.in(-1, slots - 1)));
        const View k_out = tensors.make(out_dtype, {rows, kv_heads, k_dim}, gen.pick({0, 4}));
        const View v_out = latent ? View() : tensors.make(out_dtype, {rows, kv_heads, v_dim});
        any_ops(gen).gather_rows(kv, wanted.data(), k_out, v_out);
        const double unit = out_dtype == DType::bf16 ? kBf16 : 0;
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t slot = wanted[static_cast<size_t>(i)];
          for (int64_t h = 0; h < kv_heads; ++h) {
            for (int64_t d = 0; d < k_dim; ++d) {
              const double value = slot < 0 ? 0 : element(k, slot, h, d);
              ASSERT_NEAR(element(k_out, i, h, d), value, unit * std::abs(value));
            }
            for (int64_t d = 0; d < v_dim && !latent; ++d) {
              const double value = slot < 0 ? 0 : element(v, slot, h, d);
              ASSERT_NEAR(element(v_out, i, h, d), value, unit * std::abs(value));
            }
          }
        }
      },
      50);
}

/// A cache of any kind with something in every byte that is a number.
struct Cache {
  explicit Cache(Gen& gen) {
    const bool latent = gen.chance(0.5), mixed = latent && gen.chance(0.5);
    kv = {.slots = gen.in(1, 20),
          .kv_heads = latent ? 1 : static_cast<int>(gen.in(1, 3)),
          .k_dim = 20,
          .v_dim = 12,
          .dtype = mixed ? DType::f8_e4m3 : gen.pick({DType::f32, DType::bf16, DType::f8_e4m3, DType::f8_e4m3}),
          .format = mixed ? KvFormat::fp8_ds_mla : KvFormat::elements,
          .scales = {.k = 0.25f, .v = latent ? 0.25f : 3.0f}};
    if (mixed) kv.v_dim = 256, kv.k_dim = 256 + 16;
    for (const bool key : {true, false}) {
      const int64_t bytes = key ? kv.k_row_bytes() : kv.v_row_bytes(), size = static_cast<int64_t>(size_of(kv.dtype));
      Array<std::byte>& plane = key ? keys : values;
      (key ? kv.k_stride : kv.v_stride) = bytes / size + 4;
      plane.resize(static_cast<size_t>(kv.slots * (bytes + 4 * size)));
      for (int64_t at = 0; at + size <= static_cast<int64_t>(plane.size()); at += size) {
        set(View(plane.data() + at, kv.dtype, {1}), gen.normal(), 0);
      }
    }
    kv.k = keys.data(), kv.v = latent ? keys.data() : values.data();
    if (latent) kv.v_stride = kv.k_stride;
    for (int64_t slot = 0; mixed && slot < kv.slots; ++slot) {
      for (int64_t i = 0; i < 2; ++i) {
        const auto scale = static_cast<float>(0.01 + std::abs(gen.normal()));
        std::memcpy(keys.data() + slot * kv.k_stride + kv.v_dim + 4 * i, &scale, sizeof scale);
      }
      for (int64_t i = 0; i < 16; ++i) {
        const bf16 value(static_cast<float>(gen.normal()));
        std::memcpy(keys.data() + slot * kv.k_stride + kv.v_dim + 8 + 2 * i, &value, sizeof value);
      }
    }
  }
  KvView kv;
  Array<std::byte> keys, values;
};

Array<int32_t> random_slots(Gen& gen, const KvView& kv) {
  Array<int32_t> slots;
  for (int64_t i = gen.in(0, 70); i > 0; --i) slots.push_back(static_cast<int32_t>(gen.in(-1, kv.slots - 1)));
  return slots;
}

TEST(GatherRows, NumbersAreWhatTheCacheStandsFor) {
  for_each_case([](Gen& gen) {
    const Cache cache(gen);
    const KvView& kv = cache.kv;
    const Array<int32_t> slots = random_slots(gen, kv);
    const auto rows = static_cast<int64_t>(slots.size());
    const DType dtype = gen.pick({DType::f32, DType::bf16});
    Tensors tensors;
    const View k = tensors.make(dtype, {rows, kv.kv_heads, kv.k_dim}, gen.pick({0, 3}));
    const View v = kv.is_latent() ? View() : tensors.make(dtype, {rows, kv.kv_heads, kv.v_dim});
    any_ops(gen).gather_rows(kv, slots.data(), k, v);
    const double unit = dtype == DType::bf16 ? kBf16 : kF32;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t slot = slots[static_cast<size_t>(i)];
      for (int64_t h = 0; h < kv.kv_heads; ++h) {
        for (int64_t d = 0; d < kv.k_dim; ++d) {
          const double value = slot < 0 ? 0 : cached_key(kv, slot, h, d);
          ASSERT_NEAR(element(k, i, h, d), value, unit * std::abs(value));
        }
        for (int64_t d = 0; d < kv.v_dim && !v.empty(); ++d) {
          const double value = slot < 0 ? 0 : cached_value(kv, slot, h, d);
          ASSERT_NEAR(element(v, i, h, d), value, unit * std::abs(value));
        }
      }
    }
  });
}

TEST(GatherRows, BytesThatCrossedReadAsTheRowsThemselves) {
  for_each_case([](Gen& gen) {
    const Cache cache(gen);
    const KvView& kv = cache.kv;
    const Array<int32_t> slots = random_slots(gen, kv);
    const auto rows = static_cast<int64_t>(slots.size());
    const int64_t k_bytes = kv.k_row_bytes(), v_bytes = kv.is_latent() ? 0 : kv.v_row_bytes();
    Array<std::byte> sent(static_cast<size_t>(std::max<int64_t>(1, rows) * (k_bytes + v_bytes)), std::byte{0xff});
    const View all(sent.data(), DType::u8, {rows, k_bytes + v_bytes});
    any_ops(gen).gather_rows(kv, slots.data(), all.slice(1, 0, k_bytes), v_bytes > 0 ? all.slice(1, k_bytes, v_bytes) : View());

    KvView received = kv;
    const auto size = static_cast<int64_t>(size_of(kv.dtype));
    received.k = sent.data(), received.v = sent.data() + (kv.is_latent() ? 0 : k_bytes);
    received.k_stride = received.v_stride = (k_bytes + v_bytes) / size;
    received.slots = rows;
    Tensors tensors;
    const View direct = tensors.make(DType::f32, {rows, kv.kv_heads, kv.k_dim}),
               crossed = tensors.make(DType::f32, {rows, kv.kv_heads, kv.k_dim});
    const View v = tensors.make(DType::f32, {rows, kv.kv_heads, kv.v_dim});
    any_ops(gen).gather_rows(kv, slots.data(), direct, {});
    any_ops(gen).gather_rows(received, nullptr, crossed, kv.is_latent() ? View() : v);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t slot = slots[static_cast<size_t>(i)];
      for (int64_t h = 0; h < kv.kv_heads; ++h) {
        for (int64_t d = 0; d < kv.k_dim; ++d) ASSERT_EQ(element(crossed, i, h, d), element(direct, i, h, d));
        for (int64_t d = 0; d < kv.v_dim && !kv.is_latent(); ++d) {
          const double value = slot < 0 ? 0 : cached_value(kv, slot, h, d);
          ASSERT_NEAR(element(v, i, h, d), value, kF32 * std::abs(value));
        }
      }
    }
  });
}

}  // namespace
}  // namespace weft

// Rotation of queries and keys, and the write into the cache.

#include <cstring>

#include "conformance/backend.h"
#include "conformance/tensors.h"

namespace weft {
namespace {

using namespace test;

TEST(RopeTable, IsTheFactorTimesCosineAndSineOfTheAngle) {
  const Array<int32_t> positions = {0, 1, 1'000'000};
  const double inv_freq[] = {1.0, 0.01};
  Array<float> cos(6), sin(6);
  ops().rope_table(positions.data(), inv_freq, 2.0, {cos.data(), DType::f32, {3, 2}}, {sin.data(), DType::f32, {3, 2}});
  EXPECT_EQ(cos[0], 2.0f);
  EXPECT_EQ(sin[0], 0.0f);
  EXPECT_NEAR(cos[2], 2 * 0.5403023, 1e-6);
  EXPECT_NEAR(sin[3], 2 * 0.0099998333, 1e-8);
  EXPECT_NEAR(sin[4], 2 * -0.3499935, 1e-6);  // sin(1e6): wrong from the second digit if the angle is a float
}

TEST(RopeAppend, TurnsBothPairingsByHand) {
  // Position 1, frequency pi / 2: (x, y) becomes (-y, x).
  for (bool interleaved : {false, true}) {
    Array<float> cos{0, 0}, sin{1, 1}, q{1, 2, 3, 4, 5}, k{10, 20, 30, 40, 50}, v{7}, plane_k(10, -1), plane_v(2, -1);
    const Array<int32_t> slots{1};
    const View q_view(q.data(), DType::f32, {1, 1, 5}), k_view(k.data(), DType::f32, {1, 1, 5});
    ops().rope_append({.cos = {cos.data(), DType::f32, {1, 2}},
                       .sin = {sin.data(), DType::f32, {1, 2}},
                       .rotary = 4,
                       .interleaved = interleaved,
                       .q = q_view,
                       .q_out = q_view,
                       .k = k_view,
                       .v = {v.data(), DType::f32, {1, 1, 1}},
                       .latent = {},
                       .k_out = k_view,
                       .slots = slots.data(),
                       .kv = {.k = plane_k.data(),
                              .v = plane_v.data(),
                              .k_stride = 5,
                              .v_stride = 1,
                              .slots = 2,
                              .k_dim = 5,
                              .v_dim = 1,
                              .dtype = DType::f32}});
    EXPECT_EQ(q, interleaved ? (Array<float>{-2, 1, -4, 3, 5}) : (Array<float>{-3, -4, 1, 2, 5}));
    EXPECT_EQ(k, interleaved ? (Array<float>{-20, 10, -40, 30, 50}) : (Array<float>{-30, -40, 10, 20, 50}));
    EXPECT_EQ((Array<float>(plane_k.begin() + 5, plane_k.end())), k);
    EXPECT_EQ((Array<float>(plane_k.begin(), plane_k.begin() + 5)), Array<float>(5, -1));
    EXPECT_EQ(plane_v, (Array<float>{-1, 7}));
  }
}

TEST(RopeAppend, EveryQueryIsProducedAndOnlyOwnedRowsAreWritten) {
  for_each_case([](Gen& gen) {
    const DType dtype = gen.pick({DType::f32, DType::bf16});
    const bool latent = gen.chance(0.4), interleaved = gen.chance(0.5), in_place = gen.chance(0.5);
    const int64_t rows = gen.in(0, 40), heads = gen.in(1, 4), kv_heads = latent ? 1 : gen.in(1, 3);
    const int pairs = static_cast<int>(gen.pick({1, 4, 16}));
    const int64_t dim = 2 * pairs + gen.pick({0, 8, 3}), k_dim = latent ? 2 * pairs : dim, v_dim = gen.pick({4, 16, 10});
    Tensors tensors;
    const View q = tensors.random(gen, dtype, {rows, heads, dim}, gen.pick({0, 3}));
    const View k = tensors.random(gen, dtype, {rows, kv_heads, k_dim}, gen.pick({0, 2}));
    const View v = tensors.random(gen, dtype, {rows, kv_heads, v_dim}, gen.pick({0, 1}));
    const View q_out = in_place ? q : tensors.make(dtype, {rows, heads, dim}, 1);
    const View k_out = in_place ? k : tensors.make(dtype, {rows, kv_heads, k_dim});

    std::vector<double> inv_freq;
    for (int i = 0; i < pairs; ++i) inv_freq.push_back(std::pow(10.0, -i));
    Array<int32_t> positions, slots;
    const int64_t total_slots = 2 * rows + 3;
    for (int64_t t = 0; t < rows; ++t) {
      positions.push_back(static_cast<int32_t>(gen.in(0, 100'000)));
      slots.push_back(gen.chance(0.5) ? -1 : static_cast<int32_t>(2 * t + gen.in(0, 1)));
    }
    const double factor = gen.pick({1.0, 1.3});
    const View cos = tensors.make(DType::f32, {rows, pairs}), sin = tensors.make(DType::f32, {rows, pairs});
    Ops& backend = any_ops(gen);
    backend.rope_table(positions.data(), inv_freq, factor, cos, sin);

    // What each head must become, taken before anything is turned in place.
    const auto turned = [&](const View& view) {
      std::vector<double> all;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t h = 0; h < view.size(1); ++h) {
          std::vector<double> head;
          for (int64_t d = 0; d < view.size(2); ++d) head.push_back(element(view, t, h, d));
          const auto out = reference_rotate(head, positions[static_cast<size_t>(t)], inv_freq, factor, interleaved);
          all.insert(all.end(), out.begin(), out.end());
        }
      }
      return all;
    };
    const std::vector<double> expected_q = turned(q), expected_k = turned(k);

    const int64_t cache_k = latent ? v_dim + k_dim : k_dim;
    const View plane_k = tensors.make(dtype, {total_slots, kv_heads * cache_k}, 2);
    const View plane_v = latent ? plane_k : tensors.make(dtype, {total_slots, kv_heads * v_dim});
    const auto bytes = [](const View& plane) {
      const auto* begin = static_cast<const unsigned char*>(plane.data());
      return std::vector<unsigned char>(begin,
                                        begin + static_cast<size_t>(plane.size(0) * plane.stride(0)) * size_of(plane.dtype()));
    };
    std::vector<unsigned char> canary_k = bytes(plane_k), canary_v = bytes(plane_v);
    const KvView kv{.k = plane_k.data(),
                    .v = plane_v.data(),
                    .k_stride = plane_k.stride(0),
                    .v_stride = plane_v.stride(0),
                    .slots = total_slots,
                    .kv_heads = static_cast<int>(kv_heads),
                    .k_dim = static_cast<int>(cache_k),
                    .v_dim = static_cast<int>(v_dim),
                    .dtype = dtype};
    backend.rope_append({.cos = cos,
                         .sin = sin,
                         .rotary = 2 * pairs,
                         .interleaved = interleaved,
                         .q = q,
                         .q_out = q_out,
                         .k = k,
                         .v = latent ? View() : v,
                         .latent = latent ? v : View(),
                         .k_out = k_out,
                         .slots = slots.data(),
                         .kv = kv});

    const double unit = dtype == DType::bf16 ? kBf16 : 8 * kF32;
    const auto expect_turned = [&](const View& out, const std::vector<double>& expected) {
      size_t at = 0;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t h = 0; h < out.size(1); ++h) {
          for (int64_t d = 0; d < out.size(2); ++d, ++at) {
            ASSERT_NEAR(element(out, t, h, d), expected[at], 1.01 * unit * std::abs(expected[at]) + 32 * kF32)
                << t << ", " << h;
          }
        }
      }
    };
    expect_turned(q_out, expected_q);
    expect_turned(k_out, expected_k);

    // The owned rows hold exactly k_out and v; after putting the old bytes back, nothing else has changed.
    const auto restore = [](const View& plane, int64_t slot, const std::vector<unsigned char>& old) {
      const size_t row = static_cast<size_t>(plane.stride(0)) * size_of(plane.dtype());
      const size_t used = static_cast<size_t>(plane.size(1)) * size_of(plane.dtype()), at = static_cast<size_t>(slot) * row;
      std::memcpy(static_cast<unsigned char*>(plane.data()) + at, old.data() + at, used);
    };
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t slot = slots[static_cast<size_t>(t)];
      if (slot < 0) continue;
      for (int64_t h = 0; h < kv_heads; ++h) {
        for (int64_t d = 0; d < k_dim; ++d) {
          EXPECT_EQ(element(plane_k, slot, h * cache_k + (latent ? v_dim : 0) + d), element(k_out, t, h, d));
        }
        for (int64_t d = 0; d < v_dim; ++d) EXPECT_EQ(element(plane_v, slot, h * v_dim + d), element(v, t, h, d));
      }
      restore(plane_k, slot, canary_k);
      if (!latent) restore(plane_v, slot, canary_v);
    }
    EXPECT_EQ(bytes(plane_k), canary_k);
    EXPECT_EQ(bytes(plane_v), canary_v);
  });
}

// --- fp8 ----------------------------------------------------------------------------------------------------------------

/// A cache of any fp8 kind, all bytes 0xff, and one step that is written into it without rotation of more than two elements.
struct Fp8Step {
  Fp8Step(Gen& gen, bool latent, KvFormat format, int64_t row_count)
      : rows(row_count), dtype(gen.pick({DType::f32, DType::bf16})) {
    const bool mixed = format == KvFormat::fp8_ds_mla;
    kv = {.slots = 2 * rows + 1,
          .kv_heads = latent ? 1 : static_cast<int>(gen.in(1, 3)),
          .k_dim = 20,
          .v_dim = latent ? static_cast<int>(mixed ? gen.pick({128, 512}) : gen.pick({16, 30})) : 12,
          .dtype = DType::f8_e4m3,
          .format = format};
    k_part = latent ? static_cast<int>(gen.pick({4, 64})) : kv.k_dim;
    if (latent) kv.k_dim = kv.v_dim + k_part;
    kv.scales.k = static_cast<float>(gen.pick({0.25, 1.0, 4.0, 0.013}));
    kv.scales.v = latent ? kv.scales.k : static_cast<float>(gen.pick({0.25, 1.0, 0.3}));
    const int64_t hole = gen.pick({0, 4});
    kv.k_stride = kv.k_row_bytes() + hole, kv.v_stride = latent ? kv.k_stride : kv.v_row_bytes() + hole;
    planes[0].assign(static_cast<size_t>(kv.slots * kv.k_stride), 0xff);
    planes[1].assign(static_cast<size_t>(kv.slots * kv.v_stride), 0xff);
    kv.k = planes[0].data(), kv.v = latent ? kv.k : planes[1].data();
    k = tensors.random(gen, dtype, {rows, kv.kv_heads, k_part});
    v = tensors.random(gen, dtype, {rows, kv.kv_heads, kv.v_dim});
    for (int64_t t = 0; t < rows; ++t) slots.push_back(gen.chance(0.3) ? -1 : static_cast<int32_t>(2 * t));
  }

  void append(Ops& backend = ops()) {
    const View q = tensors.make(dtype, {rows, 1, 2});
    const View cos = tensors.make(DType::f32, {rows, 1}), sin = tensors.make(DType::f32, {rows, 1});
    for (int64_t t = 0; t < rows; ++t) set(cos, 0.6, t), set(sin, 0.8, t);
    backend.rope_append({.cos = cos,
                         .sin = sin,
                         .rotary = 2,
                         .q = q,
                         .q_out = q,
                         .k = k,
                         .v = kv.is_latent() ? View() : v,
                         .latent = kv.is_latent() ? v : View(),
                         .k_out = k,
                         .slots = slots.data(),
                         .kv = kv});
  }

  uint8_t byte(int plane, int64_t slot, int64_t at) const {
    return planes[plane][static_cast<size_t>(slot * (plane == 0 ? kv.k_stride : kv.v_stride) + at)];
  }

  int64_t rows;
  DType dtype;
  KvView kv;
  int k_part = 0;  ///< elements of a head of k
  Array<uint8_t> planes[2];
  Array<int32_t> slots;
  Tensors tensors;
  View k, v;
};

uint8_t code_of(double value, float scale) { return f8_e4m3(static_cast<float>(value) / scale).bits; }

TEST(RopeAppend, Fp8IsTheNearestCodeOfTheNumberDividedByItsScale) {
  for_each_case([](Gen& gen) {
    Fp8Step step(gen, gen.chance(0.5), KvFormat::elements, gen.in(1, 12));
    step.append(any_ops(gen));
    for (int64_t t = 0; t < step.rows; ++t) {
      const int64_t slot = step.slots[static_cast<size_t>(t)];
      if (slot < 0) continue;
      const bool latent = step.kv.is_latent();
      for (int64_t h = 0; h < step.kv.kv_heads; ++h) {
        for (int64_t d = 0; d < step.k_part; ++d) {
          const int64_t at = h * step.kv.k_dim + (latent ? step.kv.v_dim : 0) + d;
          ASSERT_EQ(step.byte(0, slot, at), code_of(element(step.k, t, h, d), step.kv.scales.k)) << "key " << d;
        }
        for (int64_t d = 0; d < step.kv.v_dim; ++d) {
          const double value = element(step.v, t, h, d);
          ASSERT_EQ(step.byte(latent ? 0 : 1, slot, h * step.kv.v_dim + d), code_of(value, step.kv.scales.v)) << "value " << d;
          // Four significant bits, and steps of 2^-9 below 2^-6.
          const double scale = static_cast<double>(step.kv.scales.v), off = std::max(std::abs(value) / 16, scale * 0x1p-10);
          if (std::abs(value) < 448 * scale) {
            ASSERT_NEAR(cached_value(step.kv, slot, h, d), value, off * 1.001);
          }
        }
      }
    }
  });
}

TEST(RopeAppend, LatentRowsCarryTheScaleOfEach128Latents) {
  for_each_case([](Gen& gen) {
    Fp8Step step(gen, true, KvFormat::fp8_ds_mla, gen.in(1, 6));
    for (int64_t t = 0; t < step.rows; ++t) {  // groups of very different size
      for (int64_t d = 0; d < step.kv.v_dim; ++d) set(step.v, gen.normal() * (d < 128 ? 1e-3 : 1e3), t, 0, d);
    }
    step.append(any_ops(gen));
    for (int64_t t = 0; t < step.rows; ++t) {
      const int64_t slot = step.slots[static_cast<size_t>(t)];
      if (slot < 0) continue;
      for (int64_t group = 0; group < step.kv.v_dim; group += 128) {
        double largest = 0;
        for (int64_t d = group; d < group + 128; ++d) largest = std::max(largest, std::abs(element(step.v, t, 0, d)));
        float scale = 0;
        std::memcpy(&scale, &step.planes[0][static_cast<size_t>(slot * step.kv.k_stride + step.kv.v_dim + group / 128 * 4)], 4);
        ASSERT_EQ(scale, static_cast<float>(largest) / 448);
        for (int64_t d = group; d < group + 128; ++d) {
          ASSERT_EQ(step.byte(0, slot, d), code_of(element(step.v, t, 0, d), scale)) << "latent " << d;
        }
      }
      for (int64_t d = 0; d < step.k_part; ++d) {
        const bf16 rope(static_cast<float>(element(step.k, t, 0, d)));
        ASSERT_EQ(cached_key(step.kv, slot, 0, step.kv.v_dim + d), static_cast<float>(rope)) << "rope " << d;
      }
    }
  });
}

TEST(RopeAppend, Fp8WritesNothingOutsideTheRowsOfTheirSlots) {
  for_each_case([](Gen& gen) {
    const bool latent = gen.chance(0.6);
    Fp8Step step(gen, latent, latent && gen.chance(0.5) ? KvFormat::fp8_ds_mla : KvFormat::elements, gen.in(0, 6));
    step.append(any_ops(gen));
    for (const int plane : {0, 1}) {
      const int64_t stride = plane == 0 ? step.kv.k_stride : step.kv.v_stride;
      const int64_t used = plane == 0 ? step.kv.k_row_bytes() : latent ? 0 : step.kv.v_row_bytes();
      for (int64_t slot = 0; slot < step.kv.slots; ++slot) {
        const bool written = std::find(step.slots.begin(), step.slots.end(), slot) != step.slots.end();
        for (int64_t at = written ? used : 0; at < stride; ++at)
          ASSERT_EQ(step.byte(plane, slot, at), 0xff) << slot << ", " << at;
      }
    }
  });
}

TEST(RopeAppend, Fp8LatentsWithoutSizeOrWithInfinitiesStayReadable) {
  Gen gen(3);
  Fp8Step step(gen, true, KvFormat::fp8_ds_mla, 2);
  step.slots = {0, 2};
  const double largest = std::numeric_limits<float>::max();
  const bool wide = step.dtype == DType::f32;
  for (int64_t d = 0; d < step.kv.v_dim; ++d) {
    set(step.v, 0, 0, 0, d);
    set(step.v, d == 0 ? kInf : d == 1 ? static_cast<double>(-kInf) : d == 2 ? static_cast<double>(kNan) : 1, 1, 0, d);
  }
  step.append();
  for (int64_t d = 0; d < step.kv.v_dim; ++d) EXPECT_EQ(cached_key(step.kv, 0, 0, d), 0);
  EXPECT_NEAR(cached_key(step.kv, 2, 0, 0), largest, largest * 1e-6) << wide;
  EXPECT_NEAR(cached_key(step.kv, 2, 0, 1), -largest, largest * 1e-6);
  EXPECT_TRUE(std::isnan(cached_key(step.kv, 2, 0, 2)));
  EXPECT_EQ(cached_key(step.kv, 2, 0, 3), 0) << "1 is nothing beside the largest number";
}

}  // namespace
}  // namespace weft

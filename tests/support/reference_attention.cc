#include "support/reference_attention.h"

#include <algorithm>
#include <cmath>

namespace weft::test {
namespace {

constexpr double kNone = -HUGE_VAL;

// A whole tensor [rows, heads, dim], packed.
struct Packed {
  template <typename At>
  Packed(int64_t rows, int64_t heads_in, int64_t dim_in, const At& at) : heads(heads_in), dim(dim_in) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < heads; ++j) {
        for (int64_t d = 0; d < dim; ++d) values.push_back(at(i, j, d));
      }
    }
  }
  explicit Packed(const ConstView& view, double scale = 1)
      : Packed(view.size(0), view.size(1), view.size(2),
               [&](int64_t i, int64_t j, int64_t d) { return element(view, i, j, d) * scale; }) {}
  const double* row(int64_t i, int64_t head) const { return values.data() + (i * heads + head) * dim; }

  int64_t heads, dim;
  std::vector<double> values;
};

int64_t slot_of(const PagedKeys& paged, int32_t sequence, int64_t key) {
  const int64_t block = paged.tables[sequence * paged.table_stride + key / paged.kv.block_tokens];
  return block * paged.kv.block_tokens + key % paged.kv.block_tokens;
}

/// Element number `index` at `data`.
double stored(const void* data, DType dtype, int64_t index) { return element(ConstView(data, dtype, {index + 1}), index); }

double layer_scale(DType dtype, float scale) { return dtype == DType::f8_e4m3 ? scale : 1; }

/// Number d of [e4m3 latents | float32 scales | bfloat16 rope part].
double mixed_row(const std::byte* row, int64_t latent, int64_t d) {
  const int64_t groups = latent / 128;
  const std::byte* scales = row + latent;
  if (d >= latent) return stored(scales + groups * 4, DType::bf16, d - latent);
  return stored(row, DType::f8_e4m3, d) * stored(scales, DType::f32, d / 128);
}

}  // namespace

double element(const ConstView& view, int64_t i, int64_t j, int64_t k, int64_t l) {
  const int64_t at = i * view.stride(0) + j * view.stride(1) + k * view.stride(2) + l * view.stride(3);
  if (view.dtype() == DType::f8_e4m3) return static_cast<float>(view.as<f8_e4m3>()[at]);
  if (view.dtype() == DType::bf16) return static_cast<float>(view.as<bf16>()[at]);
  return view.as<float>()[at];
}

double cached_key(const KvView& kv, int64_t slot, int64_t head, int64_t d) {
  const auto* rows = static_cast<const std::byte*>(kv.k);
  if (kv.format == KvFormat::fp8_ds_mla) return mixed_row(rows + slot * kv.k_stride, kv.v_dim, d);
  return stored(kv.k, kv.dtype, slot * kv.k_stride + head * kv.k_dim + d) * layer_scale(kv.dtype, kv.scales.k);
}

double cached_value(const KvView& kv, int64_t slot, int64_t head, int64_t d) {
  if (kv.format == KvFormat::fp8_ds_mla) return cached_key(kv, slot, head, d);
  return stored(kv.v, kv.dtype, slot * kv.v_stride + head * kv.v_dim + d) * layer_scale(kv.dtype, kv.scales.v);
}

ReferenceAttention reference_attend(const Attention& args) {
  const int64_t blocks = args.q.size(0), rows = args.q.size(1), heads = args.q.size(2), dk = args.q.size(3);
  const int64_t dv = args.out.size(3);
  const bool paged = args.paged.kv.k != nullptr;
  const KvView& kv = args.paged.kv;
  const auto from_cache = [&](auto number, int64_t dim) {
    return Packed(kv.slots, kv.kv_heads, dim, [&](int64_t slot, int64_t head, int64_t d) { return number(kv, slot, head, d); });
  };
  const Packed keys =
      paged ? from_cache(cached_key, dk) : Packed(args.rows.k, layer_scale(args.rows.k.dtype(), args.rows.scales.k));
  const Packed values =
      paged ? from_cache(cached_value, dv) : Packed(args.rows.v, layer_scale(args.rows.v.dtype(), args.rows.scales.v));
  const int64_t group = blocks * heads / keys.heads;

  ReferenceAttention result;
  for (int64_t p = 0; p < blocks; ++p) {
    if (rows == 0) break;
    const Packed queries(args.q.at(p));
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t kv_head = (p * heads + h) / group;
        std::vector<double> scores;
        std::vector<int64_t> places;
        double terms = 0, largest = 0;
        for (int s = 0; s < args.segments; ++s) {
          for (int64_t key = args.begin[s * rows + t]; key < args.end[s * rows + t]; ++key) {
            places.push_back(paged ? slot_of(args.paged, args.seq_of[t], key) : key);
            double score = 0, sizes = 0;
            for (int64_t d = 0; d < dk; ++d) {
              const double term = queries.row(t, h)[d] * keys.row(places.back(), kv_head)[d] * args.scale;
              score += term;
              sizes += std::abs(term);
            }
            scores.push_back(score);
            terms = std::max(terms, sizes);
          }
        }
        const double top = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        std::vector<double> out(static_cast<size_t>(dv), 0.0);
        for (size_t i = 0; i < scores.size(); ++i) {
          const double weight = std::exp(scores[i] - top);
          sum += weight;
          for (int64_t d = 0; d < dv; ++d) {
            const double value = values.row(places[i], kv_head)[d];
            out[static_cast<size_t>(d)] += weight * value;
            largest = std::max(largest, std::abs(value));
          }
        }
        for (double& x : out) result.out.push_back(sum > 0 ? x / sum : 0);
        result.lse.push_back(sum > 0 ? top + std::log(sum) : kNone);
        result.terms.push_back(terms);
        result.largest.push_back(largest);
      }
    }
  }
  return result;
}

ReferenceMerge reference_merge(std::span<const Partial> partials) {
  ReferenceMerge result;
  const ConstView& shape = partials.front().out;
  for (int64_t t = 0; t < shape.size(0); ++t) {
    for (int64_t h = 0; h < shape.size(1); ++h) {
      double sum = 0;
      std::vector<double> out(static_cast<size_t>(shape.size(2)), 0.0);
      for (const Partial& partial : partials) {
        const double lse = element(partial.lse, t, h);
        if (std::isnan(lse) || std::isinf(lse)) continue;
        sum += std::exp(lse);
        for (int64_t d = 0; d < shape.size(2); ++d)
          out[static_cast<size_t>(d)] += std::exp(lse) * element(partial.out, t, h, d);
      }
      for (double x : out) result.out.push_back(sum > 0 ? x / sum : 0);
      result.lse.push_back(sum > 0 ? std::log(sum) : kNone);
    }
  }
  return result;
}

std::vector<double> reference_rotate(std::span<const double> head, int64_t position, std::span<const double> inv_freq,
                                     double factor, bool interleaved) {
  std::vector<double> out(head.begin(), head.end());
  const size_t pairs = inv_freq.size();
  for (size_t i = 0; i < pairs; ++i) {
    const size_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + pairs;
    const double angle = static_cast<double>(position) * inv_freq[i];
    out[first] = factor * (head[first] * std::cos(angle) - head[second] * std::sin(angle));
    out[second] = factor * (head[second] * std::cos(angle) + head[first] * std::sin(angle));
  }
  return out;
}

}  // namespace weft::test

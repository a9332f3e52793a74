#pragma once

#include "ops/ops.h"

namespace weft::checks {

// What every backend demands of the arguments of the operators of the same names: sizes, types and strides, never the values
// behind the pointers. Wrong ones are our bug (WEFT_CHECK).

void copy(const ConstView& in, const View& out);
void linear(const Matrix& w, const ConstView& x, const View& out);
void head_linear(std::span<const std::unique_ptr<Matrix>> w, const ConstView& x, const View& out);
void expert_linear(std::span<const std::unique_ptr<Matrix>> w, const ConstView& x, bool gather, const View& out);
void embed(const ConstView& table, const View& out);
void rms_norm(const ConstView& x, const View& out);
void add_rms_norm(const ConstView& delta, const View& residual, const View& out);
void add(const ConstView& y, const View& x);
void silu_mul(const ConstView& gate_up, const View& out);
void route(const ConstView& logits, const Routing& routing, const View& experts, const View& weights);
void combine_experts(const ConstView& y, const ConstView& weights, const ConstView& shared, const View& out);
void rope_table(std::span<const double> inv_freq, const View& cos, const View& sin);
void rope_append(const RopeAppend& args);
void gather_rows(const KvView& kv, const View& k, const View& v);
void attend(const Attention& args);
void merge(std::span<const Partial> partials, const View& out, const View& lse);
void logits(const SampledLogits& in, const View& workspace, size_t workspace_bytes);

/// [rows, columns] with neighbours of the last dimension neighbours in memory.
void matrix(const ConstView& view, DType dtype, int64_t rows, int64_t columns);

}  // namespace weft::checks

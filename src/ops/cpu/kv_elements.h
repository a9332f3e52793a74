#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace weft::cpu {

/// Copies `count` adjacent numbers. Types are equal, or float32 <-> bfloat16, or one of these <-> float8_e4m3, which stands for
/// the number divided by `scale`: nearest even, saturating, NaN stays NaN. The storages do not overlap.
void copy_elements(const void* in, DType in_dtype, int64_t count, void* out, DType out_dtype, float scale = 1);

/// One fp8_ds_mla row from a latent and a rope part, float32 or bfloat16.
void store_fp8_ds_mla(const void* latent, int64_t latent_dim, const void* rope, int64_t rope_dim, DType dtype, void* row);

/// The numbers of a fp8_ds_mla row, [latent | rope], as float32 or bfloat16.
void load_fp8_ds_mla(const void* row, int64_t latent_dim, int64_t rope_dim, void* out, DType dtype);

}  // namespace weft::cpu

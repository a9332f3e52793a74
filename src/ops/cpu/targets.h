#pragma once

// Which instruction sets Highway compiles a file for: the build's baseline, AVX2 and AVX-512. The ones between gain little
// here, and each costs compile time. Include before hwy/highway.h.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

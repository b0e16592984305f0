// Which of Highway's targets are compiled: AVX-512, AVX2 and NEON. Include before any header of Highway.
//
// Instruction sets below AVX2 have no fused multiply-add, which the score is made of; they run the scalar kernels.
#pragma once

#include "hwy/detect_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

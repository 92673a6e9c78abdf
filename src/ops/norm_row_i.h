/* A row of RMSNorm, FP32: what the kernel of norm does, and matmul where the two are fused; the same bits from both. For *_cpu.c files only.
 *
 * The sums over d run in 64 lanes: element d belongs to lane d mod 64, lanes are added as a tree at the end. */
#ifndef WR_OPS_NORM_ROW_I_H
#define WR_OPS_NORM_ROW_I_H

#include <math.h>

#include "ops/simd_i.h"

enum { NORM_SUMS = 4, NORM_STRIP = NORM_SUMS * WR_LANES };

/* sum of a_d b_d c_d; b or c NULL: 1 */
WR_INLINE float wr_sum_of_products(const float *a, const float *b, const float *c, int64_t n) {
  v16 s[NORM_SUMS] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
  int64_t d = 0;
  for (; d + NORM_STRIP <= n; d += NORM_STRIP)
    for (int j = 0; j < NORM_SUMS; j++) {
      v16 x = v16_load(a + d + j * WR_LANES);
      if (c) x = v16_mul(x, v16_load(c + d + j * WR_LANES));
      s[j] = v16_fma(x, v16_load(b + d + j * WR_LANES), s[j]);
    }
  for (int j = 0; d < n; d += WR_LANES, j++) {
    int k = wr_lanes(n - d);
    v16 x = v16_load_n(a + d, k);
    if (c) x = v16_mul(x, v16_load_n(c + d, k));
    s[j] = v16_fma(x, v16_load_n(b + d, k), s[j]);
  }
  return v16_sum(v16_add(v16_add(s[0], s[1]), v16_add(s[2], s[3])));
}

/* y = x / rms(x) * weight, weight NULL: 1; y may be x. Returns 1 / rms. */
WR_INLINE float wr_rmsnorm_row(const float *x, const float *weight, int64_t D, float eps, float *y) {
  const float rstd = 1.0f / sqrtf(wr_sum_of_products(x, x, NULL, D) / (float)D + eps);
  const v16 s = v16_set1(rstd);
  for (int64_t d = 0; d < D; d += WR_LANES) {
    const int k = wr_lanes(D - d);
    v16 v = v16_mul(v16_load_n(x + d, k), s);
    if (weight) v = v16_mul(v, v16_load_n(weight + d, k));
    v16_store_n(y + d, v, k);
  }
  return rstd;
}

#endif

/* act_dev.h: the activations of a gate in kernels of the dialect: see ops/elementwise/elementwise.h for the equations. */
#ifndef WR_OPS_ACT_DEV_H
#define WR_OPS_ACT_DEV_H

#include "device/dialect.h"

/* -2 u, of which the exponential is finite. */
DEV f32 gelu_exponent(f32 x) { return f32_min(x * f32_fma(x * x, -0.0713548163f, -1.59576912f), 80.0f); }

/* which: a wr_act, 0 silu, 1 gelu. */
DEV f32 act_value(i64 which, f32 x) { return x / (1.0f + f32_exp(which == 0 ? -x : gelu_exponent(x))); }

/* act'(x). With e the exponential, s = 1 / (1 + e) and 1 - s = e s, which has no cancellation. */
DEV f32 act_slope(i64 which, f32 x) {
  if (which == 0) {
    const f32 s = 1.0f / (1.0f + f32_exp(-x));
    return s * f32_fma(x, 1.0f - s, 1.0f);
  }
  const f32 e = f32_exp(gelu_exponent(x)), s = 1.0f / (1.0f + e);
  return s * f32_fma(x * f32_fma(x * x, 3 * 0.0713548163f, 1.59576912f), e * s, 1.0f);
}

#endif

/* act_i.h: the activations of a gate, a vector at a time: see ops/elementwise/elementwise.h for the equations. The elementwise ops and
 * the products that take a gate with them compute them here, with the same bits. */
#ifndef WR_OPS_ACT_I_H
#define WR_OPS_ACT_I_H

#include "ops/elementwise/elementwise.h"
#include "ops/simd_i.h"

/* -2 sqrt(2 / pi) (x + 0.044715 x^3), of which the exponential is finite. */
WR_INLINE v16 wr_gelu_exponent(v16 x, v16 square) {
  return v16_min(v16_mul(x, v16_fma(square, v16_set1(-0.0713548163f), v16_set1(-1.59576912f))), v16_set1(80));
}

WR_INLINE v16 wr_act_v16(wr_act act, v16 x) {
  if (act == WR_SILU) return v16_mul(x, v16_sigmoid(x));
  return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(wr_gelu_exponent(x, v16_mul(x, x)))));
}

/* act(x); *slope: act'(x). With e the exponential, s = 1 / (1 + e) and 1 - s = e s, which has no cancellation. */
WR_INLINE v16 wr_act_slope_v16(wr_act act, v16 x, v16 *slope) {
  const v16 one = v16_set1(1.0f);
  if (act == WR_SILU) {
    const v16 s = v16_sigmoid(x);
    *slope = v16_mul(s, v16_fma(x, v16_sub(one, s), one));
    return v16_mul(x, s);
  }
  const v16 square = v16_mul(x, x), e = v16_exp(wr_gelu_exponent(x, square)), s = v16_div(one, v16_add(one, e));
  const v16 inner = v16_fma(square, v16_set1(3 * 0.0713548163f), v16_set1(1.59576912f)); /* 2 u' */
  *slope = v16_mul(s, v16_fma(v16_mul(x, inner), v16_mul(e, s), one));
  return v16_mul(x, s);
}

#endif

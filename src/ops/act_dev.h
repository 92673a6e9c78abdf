/* act_dev.h: the exponential, tanh and the activations of a gate on other devices than the CPU: ops/simd_i.h and ops/act_i.h an element at a time,
 * operation by operation, so that the numeric classes of the CPU hold here too. That asks for correctly rounded divisions and fused
 * products, and for no other liberty: a device's compiler is to be told. */
#ifndef WR_OPS_ACT_DEV_H
#define WR_OPS_ACT_DEV_H

#include "device/dialect.h"

/* e^a = 2^n (1 + q r): returns q; *t holds n in its low bits. */
DEV f32 exp_parts(f32 a, f32 *r, f32 *t) {
  *t = f32_fma(a, 1.44269504f, 12582912.0f);
  const f32 n = *t - 12582912.0f, x = f32_fma(n, -0.693359375f, a);
  *r = f32_fma(n, 2.12194440e-4f, x);
  f32 q = 1.0f / 5040.0f;
  q = f32_fma(q, *r, 1.0f / 720.0f);
  q = f32_fma(q, *r, 1.0f / 120.0f);
  q = f32_fma(q, *r, 1.0f / 24.0f);
  q = f32_fma(q, *r, 1.0f / 6.0f);
  q = f32_fma(q, *r, 0.5f);
  return f32_fma(q, *r, 1.0f);
}
DEV i32 exp_int(f32 t) { return (i32)f32_bits(t) - 0x4b400000; }
DEV f32 exp_power(i32 n) { return bits_f32((u32)(n + 127) << 23); } /* 2^n, |n| <= 126 */

DEV f32 act_exp(f32 a) {
  f32 r, t;
  const f32 q = exp_parts(f32_min(89.0f, f32_max(-105.0f, a)), &r, &t), p = f32_fma(q, r, 1.0f);
  const i32 n = exp_int(t), low = n >> 1;
  return p * exp_power(low) * exp_power(n - low);
}

DEV f32 act_tanh(f32 a) {
  f32 r, t;
  const f32 q = exp_parts(f32_min(20.0f, 2.0f * f32_abs(a)), &r, &t), power = exp_power(exp_int(t));
  const f32 x = f32_fma(power, q * r, power - 1.0f);
  return bits_f32(f32_bits(x / (x + 2.0f)) | (f32_bits(a) & 0x80000000u));
}

/* -2 u, of which the exponential is finite. */
DEV f32 gelu_exponent(f32 x) { return f32_min(x * f32_fma(x * x, -0.0713548163f, -1.59576912f), 80.0f); }

/* which: a wr_act, 0 silu, 1 gelu. */
DEV f32 act_value(i64 which, f32 x) {
  if (which == 0) return x * (1.0f / (1.0f + act_exp(-x)));
  return x / (1.0f + act_exp(gelu_exponent(x)));
}

/* act'(x); *value: act(x), made as the CPU makes it beside the slope, which for gelu is not the last bit of act_value. With e the exponential,
 * s = 1 / (1 + e) and 1 - s = e s, which has no cancellation. */
DEV f32 act_slope(i64 which, f32 x, f32 *value) {
  if (which == 0) {
    const f32 s = 1.0f / (1.0f + act_exp(-x));
    *value = x * s;
    return s * f32_fma(x, 1.0f - s, 1.0f);
  }
  const f32 e = act_exp(gelu_exponent(x)), s = 1.0f / (1.0f + e);
  *value = x * s;
  return s * f32_fma(x * f32_fma(x * x, 3 * 0.0713548163f, 1.59576912f), e * s, 1.0f);
}

#endif

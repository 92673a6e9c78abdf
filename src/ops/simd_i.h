/* simd_i.h: sixteen lanes, for the files that are compiled once for each instruction set (*_cpu.c).
 *
 *   v16   sixteen floats        avx512: one zmm; avx2: two ymm; neon: four quadwords; generic: a vector of the compiler's
 *   v16i  sixteen int32         (or 64 bytes, as the product of bytes sees it)
 *   m16   sixteen booleans
 *
 * Invariant: every function gives the same bits on every instruction set, NaN payloads excepted. So products that are to be
 * fused are written as v16_fma, horizontal sums have one fixed order, and exp is a polynomial of our own. Loads and stores need
 * no alignment. v16_round_i32 (to nearest even) is for |a| < 2^22 only, v16_trunc_i32 (towards zero) for what int32 holds.
 * v16i_dot4(acc, u8, s8) adds up (u8 - WR_DOT_OFFSET) * s8, four bytes a lane; v16i_dot4_u7 takes u8 below 128 as it is.
 * WR_ISA_LEVEL is also how many v16 the registers hold: 1 eight (sixteen ymm, 32 quadwords), 2 thirty-two.
 * Lanes past the end: the _n forms touch only the first n (0..16) elements in memory; loads fill the rest with zero.
 *
 * Each instruction set has its file, simd_ISA_i.h. The generic form calls fmaf() for each lane: right everywhere, slow where
 * the processor has no such instruction.
 */
#ifndef WR_OPS_SIMD_I_H
#define WR_OPS_SIMD_I_H

#include "base/base.h"

#ifndef WR_ISA
#define WR_ISA generic
#define WR_ISA_LEVEL 0
#endif

/* WR_KERNEL(glu_f32_cpu) is glu_f32_cpu_avx2 when compiled for avx2. */
#define WR_KERNEL_PASTE(base, isa) base##_##isa
#define WR_KERNEL_EXPAND(base, isa) WR_KERNEL_PASTE(base, isa)
#define WR_KERNEL(base) WR_KERNEL_EXPAND(base, WR_ISA)

/* Forced inline: bodies that are specialised by constant arguments, and everything that hands vectors around. */
#define WR_INLINE static inline __attribute__((always_inline, unused))

enum { WR_LANES = 16 };

/* How many lanes the next vector of a row has, of which `left` elements, at least one, are to come. */
WR_INLINE int wr_lanes(int64_t left) { return left < WR_LANES ? (int)left : WR_LANES; }

/* Into the first-level cache. No fault, whatever the address. */
WR_INLINE void wr_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }

#if WR_ISA_LEVEL >= 2
#include "ops/simd_avx512_i.h"
#elif WR_ISA_LEVEL == 1 && defined(__aarch64__)
#include "ops/simd_neon_i.h"
#elif WR_ISA_LEVEL == 1
#include "ops/simd_avx2_i.h"
#else
#include "ops/simd_generic_i.h"
#endif

/* ------------------------------------------------------------------------------------------------------ made of the above */

WR_INLINE v16 v16_abs(v16 a) { return v16i_as_float(v16i_and(v16_bits(a), v16i_set1(0x7fffffff))); }
WR_INLINE v16 v16_neg(v16 a) { return v16_sub(v16_set1(-0.0f), a); }

#if WR_ISA_LEVEL < 2
WR_INLINE v16 v16_load_f16_n(const uint16_t *p, int n) {
  uint16_t t[16] = {0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return v16_load_f16(t);
}
WR_INLINE v16 v16_load_bf16_n(const uint16_t *p, int n) {
  uint16_t t[16] = {0};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return v16_load_bf16(t);
}
WR_INLINE void v16_store_f16_n(uint16_t *p, v16 a, int n) {
  uint16_t t[16];
  v16_store_f16(t, a);
  for (int i = 0; i < n; i++) p[i] = t[i];
}
#endif

/* Sixteen floats to BF16, to nearest even; NaN stays NaN. n 0..16. */
WR_INLINE void v16_store_bf16_n(uint16_t *p, v16 a, int n) {
  uint32_t t[16];
  v16i bits = v16_bits(a), odd = v16i_and(v16i_shr(bits, 16), v16i_set1(1));
  v16i near = v16i_add(v16i_add(bits, v16i_set1(0x7fff)), odd), quiet = v16i_or(bits, v16i_set1(0x00400000));
  v16i_store(t, v16i_shr(v16_bits(v16_select(v16_eq(a, a), v16i_as_float(near), v16i_as_float(quiet))), 16));
  for (int i = 0; i < n; i++) p[i] = (uint16_t)t[i];
}

/* e^a = 2^n (1 + q r) with r = a - n ln 2, |r| <= ln 2 / 2, and a polynomial q of degree 6 in r (Taylor's, whose remainder there is
 * below 2^-29). Returns q; *t holds n in its low bits, n + 1.5 * 2^23. */
WR_INLINE v16 wr_exp_parts(v16 a, v16 *r, v16 *t) {
  const v16 magic = v16_set1(12582912.0f); /* 1.5 * 2^23: the adder rounds to integers, which then stand in the low bits */
  *t = v16_fma(a, v16_set1(1.44269504f), magic);
  const v16 n = v16_sub(*t, magic), x = v16_fma(n, v16_set1(-0.693359375f), a); /* ln 2 = 355/512 - 2.12194440e-4 */
  *r = v16_fma(n, v16_set1(2.12194440e-4f), x);
  v16 q = v16_set1(1.0f / 5040);
  q = v16_fma(q, *r, v16_set1(1.0f / 720));
  q = v16_fma(q, *r, v16_set1(1.0f / 120));
  q = v16_fma(q, *r, v16_set1(1.0f / 24));
  q = v16_fma(q, *r, v16_set1(1.0f / 6));
  q = v16_fma(q, *r, v16_set1(0.5f));
  return v16_fma(q, *r, v16_set1(1.0f));
}
/* The integer that stands in the low bits of t. */
WR_INLINE v16i wr_exp_int(v16 t) { return v16i_sub(v16_bits(t), v16_bits(v16_set1(12582912.0f))); }
/* 2^n, |n| <= 126 */
WR_INLINE v16 wr_exp_power(v16i n) { return v16i_as_float(v16i_shl(v16i_add(n, v16i_set1(127)), 23)); }

/* e^a within 1 ulp or so. 2^n as two factors, so that denormal results are rounded once and n = 128 does not overflow early.
 * exp(-inf) = 0, exp(large) = inf, NaN stays. */
WR_INLINE v16 v16_exp(v16 a) {
  v16 r, t;
  const v16 q = wr_exp_parts(v16_min(v16_set1(89.0f), v16_max(v16_set1(-105.0f), a)), &r, &t);
  const v16 p = v16_fma(q, r, v16_set1(1.0f));
#if WR_ISA_LEVEL >= 2
  return _mm512_scalef_ps(p, v16_sub(t, v16_set1(12582912.0f))); /* p 2^n rounded once; as below, where the first product is exact */
#else
  const v16i n = wr_exp_int(t), half = v16i_sar(n, 1);
  return v16_mul(v16_mul(p, wr_exp_power(half)), wr_exp_power(v16i_sub(n, half)));
#endif
}

/* tanh a within 2 ulp or so, for small a too: tanh |a| = x / (x + 2) with x = e^{2|a|} - 1 = 2^n q r + (2^n - 1). NaN stays. */
WR_INLINE v16 v16_tanh(v16 a) {
  v16 r, t;
  const v16 q = wr_exp_parts(v16_min(v16_set1(20.0f), v16_mul(v16_set1(2.0f), v16_abs(a))), &r, &t);
  const v16 power = wr_exp_power(wr_exp_int(t));
  const v16 x = v16_fma(power, v16_mul(q, r), v16_sub(power, v16_set1(1.0f)));
  const v16i sign = v16i_and(v16_bits(a), v16_bits(v16_set1(-0.0f)));
  return v16i_as_float(v16i_or(v16_bits(v16_div(x, v16_add(x, v16_set1(2.0f)))), sign));
}

/* 1 / (1 + e^-a) */
WR_INLINE v16 v16_sigmoid(v16 a) {
  const v16 one = v16_set1(1.0f);
  return v16_div(one, v16_add(one, v16_exp(v16_neg(a))));
}

#endif

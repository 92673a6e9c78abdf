/* matmul_quant_i.h: quantised operands of matmul as its kernels see them: x in int8, and the bytes of packed weights.
 *
 * A row of x is quantised in blocks of 32: d = amax / 127, q = nearest even of x * (127 / amax), int8; and s, the block's
 * integer sum. A block whose x is not finite has d = NaN, so that its outputs are NaN; one whose amax is below 1e-30 counts as
 * zero. All functions take a dtype that is constant after inlining.
 */
#ifndef WR_OPS_MATMUL_QUANT_I_H
#define WR_OPS_MATMUL_QUANT_I_H

#include "core/core.h"
#include "ops/simd_i.h"

/* Rows of x are kept in the tiles that the kernels take, block after block, so that within a tile all addresses are constants:
 *   tile of R rows, block b, at b * R * 40:   int8 q[R][32], then for each row the float d and four bytes of correction,
 * the integer -bias * s, or, for types with a minimum, the float d * s. */
enum { XQ_BLOCK = 40 };

/* What quant_dot's weights are more than their values. */
WR_INLINE int quant_bias(wr_dtype t) { return wr_quant_of(t).bias - (wr_quant_of(t).bits == 8 ? WR_DOT_OFFSET : 0); }

/* A row of x, K a multiple of 32, into row r of a tile of R. */
WR_INLINE void quantise_row(wr_dtype t, const float *x, int64_t K, uint8_t *tile, int r, int R) {
  const v16i magnitude = v16i_set1(0x7fffffff);
  for (int64_t b = 0; b < K / 32; b++) {
    uint8_t *block = tile + b * R * XQ_BLOCK;
    const v16 lo = v16_load(x + 32 * b), hi = v16_load(x + 32 * b + 16);
    /* as integers, so that NaN counts as larger than all else */
    const int32_t top = v16i_hmax(v16i_max(v16i_and(v16_bits(lo), magnitude), v16i_and(v16_bits(hi), magnitude)));
    const bool finite = top < 0x7f800000;
    float amax, d = 0, inverse = 0;
    memcpy(&amax, &top, sizeof amax);
    if (!finite)
      d = __builtin_nanf("");
    else if (amax > 1e-30f)
      d = amax / 127, inverse = 127 / amax;
    const v16i qlo = v16_round_i32(v16_mul(lo, v16_set1(inverse))), qhi = v16_round_i32(v16_mul(hi, v16_set1(inverse)));
    v16i_store_i8((int8_t *)block + 32 * r, qlo);
    v16i_store_i8((int8_t *)block + 32 * r + 16, qhi);
    const int32_t s = finite ? v16i_sum(v16i_add(qlo, qhi)) : 0, biased = -quant_bias(t) * s;
    const float scaled = d * (float)s;
    uint8_t *scales = block + 32 * R + 8 * r;
    memcpy(scales, &d, 4);
    if (wr_quant_of(t).minimum)
      memcpy(scales + 4, &scaled, 4);
    else
      memcpy(scales + 4, &biased, 4);
  }
}

WR_INLINE int32_t read_i32(const uint8_t *p) {
  int32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

WR_INLINE float read_f32(const uint8_t *p) {
  float v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Where AVX-512 takes bytes up to 255 in its product, high nibbles stay where they are, 16 times their value; the sum of such
 * products is divided by 16 at the end, exactly. */
#if WR_ISA_LEVEL >= 2
enum { HIGH_SHIFT = 4 };
#else
enum { HIGH_SHIFT = 0 };
#endif

/* Step j (0..3) of a block as bytes for the product, lane r of which are four elements of row r of the group: lo the elements 4j..
 * of the block, hi those at 16 + 4j.., shifted left by `shift`. lines: the block's, 64 * bits bytes. */
WR_INLINE void quant_line(wr_dtype t, int shift, const uint8_t *lines, int j, v16i *lo, v16i *hi) {
  const int bits = wr_quant_of(t).bits;
  const v16i low = v16i_set1(0x0f0f0f0f), ones = v16i_set1(0x01010101);
  const v16i line = v16i_load(lines + 64 * j);
  if (bits == 8) {
    *lo = line, *hi = v16i_load(lines + 64 * (4 + j));
    return;
  }
  *lo = v16i_and(line, low);
  *hi = shift ? v16i_and(line, v16i_shl(low, 4)) : v16i_and(v16i_shr(line, 4), low);
  if (bits == 4) return;
  const v16i fifth = v16i_shr(v16i_load(lines + 64 * 4), j);
  *lo = v16i_or(*lo, v16i_shl(v16i_and(fifth, ones), 4));
  *hi = v16i_or(*hi, v16i_shl(v16i_and(v16i_shr(fifth, 4), ones), 4));
}

/* acc + the products of four bytes of weights, as quant_line gives them, with four of x. */
WR_INLINE v16i quant_dot(wr_dtype t, v16i acc, v16i weights, v16i x) {
  return wr_quant_of(t).bits == 8 ? v16i_dot4(acc, weights, x) : v16i_dot4_u7(acc, weights, x);
}

#endif

/* matmul_quant_i.h: quantised operands of matmul as its kernels see them: x in int8, and the bytes of packed weights.
 *
 * A row of x is quantised in blocks of 32: d = amax / 127, q = nearest even of x * (127 / amax), int8; and s, the block's
 * integer sum. A block whose x is not finite has d = NaN, so that its outputs are NaN; one whose amax is below 1e-30 counts as
 * zero. All functions but quantise_row take a dtype that is constant after inlining.
 */
#ifndef WR_OPS_MATMUL_QUANT_I_H
#define WR_OPS_MATMUL_QUANT_I_H

#include "core/core.h"
#include "ops/matmul/matmul_i.h"
#include "ops/simd_i.h"

/* Rows of x are kept in the tiles that the kernels take, block after block, so that within a tile all addresses are constants:
 *   tile of R rows, block b, at b * R * XQ_BLOCK:   int8 q[R][32], then for each row the float d and for each part of the block, one
 * of 32 elements or two of 16, four bytes of correction: the integer -bias * s, or, for types with a minimum, the float d * s.
 * s is the sum of the part. */
enum { XQ_BLOCK = WR_MM_XQ_BLOCK, XQ_SCALES = XQ_BLOCK - 32 };

/* Does the product take bytes up to 255? */
WR_INLINE bool quant_wide(wr_dtype t) { return wr_quant_of(t).bits == 8 || wr_quant_of(t).table; }

/* What quant_dot's weights are more than their values. */
WR_INLINE int quant_bias(wr_dtype t) { return wr_quant_of(t).bias - (quant_wide(t) ? WR_DOT_OFFSET : 0); }

WR_INLINE int quant_parts(wr_dtype t) { return 32 / wr_quant_of(t).part; }

/* A row of x, K a multiple of 32, into row r of a tile of R. t: any. Sixteen blocks at a time, so that a division serves sixteen. */
WR_INLINE void quantise_row(wr_dtype t, const float *x, int64_t K, uint8_t *tile, int r, int R) {
  const wr_quant form = wr_quant_of(t);
  const int parts = form.part == 32 ? 1 : 2, bias = quant_bias(t);
  const v16i magnitude = v16i_set1(0x7fffffff);
  for (int64_t b0 = 0; b0 < K / 32; b0 += WR_LANES) {
    const int n = wr_lanes(K / 32 - b0);
    int32_t largest[WR_LANES] = {0};
    for (int i = 0; i < n; i++) {
      const float *from = x + 32 * (b0 + i);
      /* as integers, so that NaN counts as larger than all else */
      largest[i] = v16i_hmax(
          v16i_max(v16i_and(v16_bits(v16_load(from)), magnitude), v16i_and(v16_bits(v16_load(from + 16)), magnitude)));
    }
    const v16 amax = v16i_as_float(v16i_load(largest)), zero = v16_zero(), most = v16_set1(127);
    const m16 some = v16_lt(v16_set1(1e-30f), amax), finite = v16_lt(amax, v16_set1(__builtin_inff()));
    float d[WR_LANES], inverse[WR_LANES];
    v16_store(d, v16_select(finite, v16_select(some, v16_div(amax, most), zero), v16_set1(__builtin_nanf(""))));
    v16_store(inverse, v16_select(finite, v16_select(some, v16_div(most, amax), zero), zero));
    for (int i = 0; i < n; i++) {
      const float *from = x + 32 * (b0 + i);
      uint8_t *block = tile + (b0 + i) * R * XQ_BLOCK, *scales = block + 32 * R + XQ_SCALES * r;
      const v16 by = v16_set1(inverse[i]);
      const v16i qlo = v16_round_i32(v16_mul(v16_load(from), by)), qhi = v16_round_i32(v16_mul(v16_load(from + 16), by));
      v16i_store_i8((int8_t *)block + 32 * r, qlo);
      v16i_store_i8((int8_t *)block + 32 * r + 16, qhi);
      memcpy(scales, &d[i], 4);
      for (int part = 0; part < parts; part++) {
        const v16i sums = parts == 1 ? v16i_add(qlo, qhi) : part ? qhi : qlo;
        const int32_t s = largest[i] < 0x7f800000 ? v16i_sum(sums) : 0, biased = -bias * s;
        const float scaled = d[i] * (float)s;
        memcpy(scales + 4 + 4 * part, form.minimum ? (const void *)&scaled : &biased, 4);
      }
    }
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

/* Bits of each lane from `from`, as many as mask has ones, moved to begin at `to`. */
WR_INLINE v16i masked_shift(v16i a, int from, int to, int32_t mask) {
  const v16i moved = from > to ? v16i_shr(a, from - to) : from < to ? v16i_shl(a, to - from) : a;
  return v16i_and(moved, v16i_set1((int32_t)((uint32_t)mask << to)));
}

/* Elements 4e..4e+3 of a block, unsigned, as the bytes of a lane. lines: the block's. */
WR_INLINE v16i quant_bytes(wr_dtype t, const uint8_t *lines, int e) {
  const int bits = wr_quant_of(t).bits;
  if (bits == 8) return v16i_load(lines + 64 * e);
  v16i q = v16i_zero();
  for (int w = 4, low = 0; w; w /= 2) {
    if (!(bits & w)) continue;
    const v16i part = masked_shift(v16i_load(lines + 64 * (e % w)), e / w * w, low, ((1 << w) - 1) * 0x01010101);
    q = low ? v16i_or(q, part) : part;
    low += w, lines += 64 * w;
  }
  return wr_quant_of(t).table ? v16i_look_up(wr_iq4, q) : q;
}

/* Step j (0..3) of a block as bytes for the product, lane r of which are four elements of row r of the group: lo the elements 4j..
 * of the block, hi those at 16 + 4j.., shifted left by `shift`, 4 or 0. lines: the block's, 64 * bits bytes. */
WR_INLINE void quant_line(wr_dtype t, int shift, const uint8_t *lines, int j, v16i *lo, v16i *hi) {
  *lo = quant_bytes(t, lines, j);
  *hi = shift ? v16i_and(v16i_load(lines + 64 * j), v16i_set1((int32_t)0xf0f0f0f0)) : quant_bytes(t, lines, 4 + j);
}

/* acc + the products of four bytes of weights, as quant_line gives them, with four of x. */
WR_INLINE v16i quant_dot(wr_dtype t, v16i acc, v16i weights, v16i x) {
  return quant_wide(t) ? v16i_dot4(acc, weights, x) : v16i_dot4_u7(acc, weights, x);
}

/* The scales of the parts of a block of 256, and after them the minima, of sixteen rows, to out. halves, words: the block's, as packed. */
WR_INLINE void quant_scales(wr_dtype t, const uint8_t *halves, const uint8_t *words, float *out) {
  const wr_quant form = wr_quant_of(t);
  const int parts = 256 / form.part, n = parts * (1 + form.minimum);
  const v16 d = v16_load_f16((const uint16_t *)halves), dmin = form.minimum ? v16_neg(v16_load_f16((const uint16_t *)halves + 16)) : d;
#pragma GCC unroll 32
  for (int v = 0; v < n; v++) {
    const uint8_t *plane = words;
    v16i s = v16i_zero();
    for (int w = 8, low = 0; w; w /= 2) {
      if (!(form.scale_bits & w)) continue;
      s = v16i_or(s, masked_shift(v16i_load(plane + 64 * (v * w / 32)), v * w % 32, low, (1 << w) - 1));
      low += w, plane += 64 * (n * w / 32);
    }
    if (form.scale_bias) s = v16i_sub(s, v16i_set1(form.scale_bias));
    v16_store(out + 16 * v, v16_mul(v < parts ? d : dmin, v16_from_i32(s)));
  }
}

#endif

/* quant_cpu.c: floats to the stored types, sixteen lanes at a time, compiled once for each instruction set; the same bytes from all.
 *
 * Types with a block of 32: a lane is an element; the scale comes from the extremes, so there is nothing to search (the bytes of
 * core/dtype/codecs.c, which is their definition).
 *
 * K types: a lane is a part (32 or 16 elements with one scale), so that the sums of a fit need no sum over lanes and sixteen
 * searches run at once. A fit tries scales around the one that the extremes give; each rounds the elements to levels q, and for
 * these the best scale (and minimum) by weighted least squares is had in closed form from five sums, as is its error:
 *   minimise sum w (y - s q - c)^2:   s = (W Sqy - Sq Sy) / D,  c = (Sqq Sy - Sq Sqy) / D,  D = W Sqq - Sq^2
 * The best of them wins. Then the scales of a block of 256 are themselves rounded (to 6 or 8 bits of one F16 scale), where
 * Q4_K and Q5_K look once more at the neighbours of each rounded scale, with the minimum that suits it; at last the elements
 * are rounded with the scales as they will be read.
 *
 * Invariant: lanes never meet, and each sum has one order: bytes do not depend on the instruction set, nor on what is beside a block.
 *
 * References: the block structures are ggml's; weighted least squares over scales is how its K types are made too
 * (ggml-quants.c). The search here is another one: lane for part, errors from sums, scales looked at again after rounding.
 */
#include <math.h>

#include "ops/quant/quant_i.h"
#include "ops/simd_i.h"

#define QUANT_PASTE(name, isa) wr_quant_##name##_##isa
#define QUANT_EXPAND(name, isa) QUANT_PASTE(name, isa)
#define QUANT(name) QUANT_EXPAND(name, WR_ISA)

enum { B = 32, SUPER = 256 }; /* elements of a block */

WR_INLINE void write_half(uint8_t *p, float f) {
  const uint16_t h = wr_float_to_f16(f);
  memcpy(p, &h, sizeof h);
}

/* as it will be read */
WR_INLINE float rounded_half(float f) { return wr_f16_to_float(wr_float_to_f16(f)); }

/* the low bytes of sixteen lanes */
WR_INLINE void store_bytes(uint8_t *p, v16i a) { v16i_store_i8((int8_t *)p, v16i_sar(v16i_shl(a, 24), 24)); }

WR_INLINE v16 clamp(v16 a, float low, float high) { return v16_min(v16_max(a, v16_set1(low)), v16_set1(high)); }

/* ------------------------------------------------------------------------------------------------------------------- floats */

void QUANT(F32)(const float *src, void *dst, int64_t n) { memcpy(dst, src, (size_t)n * sizeof *src); }

void QUANT(F16)(const float *src, void *dst, int64_t n) {
  uint16_t *p = dst;
  for (int64_t i = 0; i < n; i += WR_LANES) {
    const int m = wr_lanes(n - i);
    v16_store_f16_n(p + i, v16_load_n(src + i, m), m);
  }
}

void QUANT(BF16)(const float *src, void *dst, int64_t n) {
  uint16_t *p = dst;
  for (int64_t i = 0; i < n; i += WR_LANES) {
    const int m = wr_lanes(n - i);
    v16_store_bf16_n(p + i, v16_load_n(src + i, m), m);
  }
}

/* ---------------------------------------------------------------------------------------------------- blocks of 32 elements */

/* To nearest, halves away from zero: cut after adding what is just below a half. */
WR_INLINE v16i nearest_away(v16 a) {
  const v16i sign = v16i_and(v16_bits(a), v16i_set1(INT32_MIN));
  return v16_trunc_i32(v16_add(a, v16i_as_float(v16i_or(sign, v16_bits(v16_set1(0x1.fffffep-2f))))));
}

void QUANT(Q8_0)(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += B, p += 34) {
    const v16 x0 = v16_load(src + i), x1 = v16_load(src + i + 16);
    const float d = v16_hmax(v16_max(v16_abs(x0), v16_abs(x1))) / 127, id = d > 0 ? 1 / d : 0;
    write_half(p, d);
    store_bytes(p + 2, nearest_away(v16_mul(x0, v16_set1(id))));
    store_bytes(p + 18, nearest_away(v16_mul(x1, v16_set1(id))));
  }
}

/* Levels 0..top of (x - low) * id, `half` being the rounding term. */
WR_INLINE v16i levels(v16 x, float low, float id, float half, float top) {
  const v16 t = v16_add(v16_mul(v16_sub(x, v16_set1(low)), v16_set1(id)), v16_set1(half));
  return v16_trunc_i32(v16_min(t, v16_set1(top)));
}

WR_INLINE void store_nibbles(uint8_t *p, v16i q0, v16i q1) {
  const v16i low = v16i_set1(15);
  store_bytes(p, v16i_or(v16i_and(q0, low), v16i_shl(v16i_and(q1, low), 4)));
}

/* Bit j of the word: the fifth bit of element j. */
WR_INLINE void store_fifths(uint8_t *p, v16i q0, v16i q1) {
  static const int32_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  const v16i bits = v16i_load(bit), zero = v16i_zero();
  const v16i b0 = v16i_and(v16i_sub(zero, v16i_shr(q0, 4)), bits), b1 = v16i_and(v16i_sub(zero, v16i_shr(q1, 4)), bits);
  const int32_t high = v16i_sum(v16i_or(b0, v16i_shl(b1, 16)));
  memcpy(p, &high, sizeof high);
}

/* The element of largest magnitude, the first of equals. */
WR_INLINE float signed_extreme(const float *x, v16 x0, v16 x1) {
  const float high = v16_hmax(v16_max(x0, x1)), low = -v16_hmax(v16_neg(v16_min(x0, x1)));
  if (high != -low) return high > -low ? high : low;
  for (int j = 0; j < B && high > 0; j++)
    if (x[j] == high || x[j] == low) return x[j];
  return 0;
}

/* Q4_0, Q5_0: it gets the lowest level exactly, since there is one more below zero than above. */
WR_INLINE void signed_blocks(const float *src, uint8_t *p, int64_t n, int bits) {
  const float half = (float)(1 << (bits - 1)), top = 2 * half - 1;
  for (int64_t i = 0; i < n; i += B, p += bits == 4 ? 18 : 22) {
    const v16 x0 = v16_load(src + i), x1 = v16_load(src + i + 16);
    const float d = signed_extreme(src + i, x0, x1) / -half, id = d != 0 ? 1 / d : 0;
    write_half(p, d);
    const v16i q0 = levels(x0, 0, id, half + 0.5f, top), q1 = levels(x1, 0, id, half + 0.5f, top);
    if (bits == 5) store_fifths(p + 2, q0, q1);
    store_nibbles(p + (bits == 4 ? 2 : 6), q0, q1);
  }
}

/* Q4_1, Q5_1: from the lowest to the highest element. */
WR_INLINE void ranged_blocks(const float *src, uint8_t *p, int64_t n, int bits) {
  const float top = (float)((1 << bits) - 1);
  for (int64_t i = 0; i < n; i += B, p += bits == 4 ? 20 : 24) {
    const v16 x0 = v16_load(src + i), x1 = v16_load(src + i + 16);
    const float low = -v16_hmax(v16_neg(v16_min(x0, x1))), high = v16_hmax(v16_max(x0, x1));
    const float d = (high - low) / top, id = d > 0 ? 1 / d : 0;
    write_half(p, d), write_half(p + 2, low);
    const v16i q0 = levels(x0, low, id, 0.5f, top), q1 = levels(x1, low, id, 0.5f, top);
    if (bits == 5) store_fifths(p + 4, q0, q1);
    store_nibbles(p + (bits == 4 ? 4 : 8), q0, q1);
  }
}

void QUANT(Q4_0)(const float *src, void *dst, int64_t n) { signed_blocks(src, dst, n, 4); }
void QUANT(Q5_0)(const float *src, void *dst, int64_t n) { signed_blocks(src, dst, n, 5); }
void QUANT(Q4_1)(const float *src, void *dst, int64_t n) { ranged_blocks(src, dst, n, 4); }
void QUANT(Q5_1)(const float *src, void *dst, int64_t n) { ranged_blocks(src, dst, n, 5); }

/* ------------------------------------------------------------------------------------------------------------------ K types */

/* To nearest integer, |a| < 2^22. */
WR_INLINE v16 nearest(v16 a) {
  const v16 magic = v16_set1(12582912.0f);
  return v16_sub(v16_add(a, magic), magic);
}

WR_INLINE m16 positive(v16 a) { return v16_lt(v16_zero(), a); }

/* a / b, 0 where b is not above 0 */
WR_INLINE v16 ratio(v16 a, v16 b) { return v16_select(positive(b), v16_div(a, b), v16_zero()); }

/* Sums over a part's elements y, with weights w: those that levels have no share in, and those that they have. */
typedef struct part_sums {
  v16 w, y, yy;
} part_sums;
typedef struct level_sums {
  v16 q, qq, qy;
} level_sums;

/* sum w (y - s q - c)^2 */
WR_INLINE v16 fit_error(const part_sums *t, const level_sums *l, v16 s, v16 c) {
  const v16 two_c = v16_add(c, c), two_s = v16_add(s, s);
  v16 e = v16_fma(v16_mul(c, c), t->w, v16_fma(v16_mul(s, s), l->qq, t->yy));
  e = v16_sub(e, v16_fma(two_c, t->y, v16_mul(two_s, l->qy)));
  return v16_fma(v16_mul(two_c, s), l->q, e);
}

/* The levels clamp(nearest((y + shift) * id)) of every element of every part, 0..top. */
WR_INLINE level_sums round_parts(const float *y, const float *w, int n, v16 id, v16 shift, float top) {
  level_sums l = {v16_zero(), v16_zero(), v16_zero()};
  for (int j = 0; j < n; j++) {
    const v16 v = v16_load(y + 16 * j), q = nearest(clamp(v16_fma(v, id, shift), 0, top)), wq = v16_mul(v16_load(w + 16 * j), q);
    l.q = v16_add(l.q, wq);
    l.qq = v16_fma(wq, q, l.qq);
    l.qy = v16_fma(wq, v, l.qy);
  }
  return l;
}

/* Two blocks of Q4_K (top 15) or Q5_K (top 31) side by side: sixteen parts of 32. scale and min, as small integers, and their
 * units d[block], dmin[block]. */
typedef struct pair_scales {
  float scale[16], min[16], d[2], dmin[2];
} pair_scales;

WR_INLINE v16 by_block(const float v[2]) { return v16_select(m16_first(8), v16_set1(v[0]), v16_set1(v[1])); }

/* An F16 unit of which the largest of eight is `most` times. */
WR_INLINE float unit_of(const float *v, float most) {
  float max = v[0];
  for (int i = 1; i < 8; i++) max = v[i] > max ? v[i] : max;
  return rounded_half(max / most);
}

WR_INLINE void fit_pair(const float *const block[2], float top, pair_scales *r) {
  enum { TRIES = 12, AROUND = 1 };
  float y[B * 16], w[B * 16];
  for (int l = 0; l < 16; l++)
    for (int j = 0; j < B; j++) y[16 * j + l] = block[l / 8][B * (l % 8) + j];
  v16 low = v16_zero(), high = v16_load(y), square = v16_zero();
  for (int j = 0; j < B; j++) {
    const v16 x = v16_load(y + 16 * j);
    low = v16_min(low, x), high = v16_max(high, x), square = v16_fma(x, x, square);
  }
  const v16 rms = v16_sqrt(v16_mul(square, v16_set1(1.0f / B))), range = v16_sub(high, low);
  part_sums t = {v16_zero(), v16_zero(), v16_zero()};
  for (int j = 0; j < B; j++) { /* from here on y is x - low */
    const v16 x = v16_load(y + 16 * j), v = v16_sub(x, low), weight = v16_add(rms, v16_abs(x));
    v16_store(y + 16 * j, v);
    v16_store(w + 16 * j, weight);
    t.w = v16_add(t.w, weight);
    t.y = v16_fma(weight, v, t.y);
    t.yy = v16_fma(v16_mul(weight, v), v, t.yy);
  }

  v16 best = v16_set1(INFINITY), scale = v16_zero(), shift = v16_zero(); /* y = scale q + shift, shift + low <= 0 */
  for (int k = 0; k < TRIES; k++) {
    const v16 id = ratio(v16_set1(top - 1 + 2.0f * (float)k / TRIES), range);
    const level_sums l = round_parts(y, w, B, id, v16_zero(), top);
    const v16 most = v16_mul(t.w, l.qq), det = v16_sub(most, v16_mul(l.q, l.q));
    const m16 spread = v16_lt(v16_mul(most, v16_set1(1e-5f)), det); /* else all levels are one, and c is what it may be at most */
    v16 s = ratio(v16_sub(v16_mul(t.w, l.qy), v16_mul(l.q, t.y)), det);
    v16 c = v16_select(spread, v16_div(v16_sub(v16_mul(l.qq, t.y), v16_mul(l.q, l.qy)), det), v16_set1(INFINITY));
    const m16 above = v16_lt(v16_neg(low), c);
    s = v16_select(above, ratio(v16_fma(low, l.q, l.qy), l.qq), s);
    c = v16_select(above, v16_neg(low), c);
    const v16 e = v16_select(positive(l.qq), fit_error(&t, &l, s, c), v16_set1(INFINITY));
    const m16 better = v16_lt(e, best);
    best = v16_select(better, e, best), scale = v16_select(better, s, scale), shift = v16_select(better, c, shift);
  }
  v16_store(r->scale, scale);
  v16_store(r->min, v16_neg(v16_add(shift, low)));
  for (int b = 0; b < 2; b++) r->d[b] = unit_of(r->scale + 8 * b, 63), r->dmin[b] = unit_of(r->min + 8 * b, 63);

  /* The neighbours of the rounded scale, each with the minimum that suits its levels. */
  const v16 d = by_block(r->d), dmin = by_block(r->dmin), min0 = clamp(nearest(ratio(v16_load(r->min), dmin)), 0, 63);
  const v16 scale0 = nearest(ratio(scale, d)), id_min = ratio(v16_set1(1), dmin);
  v16 best_scale = v16_zero(), best_min = min0;
  best = v16_set1(INFINITY);
  for (int k = -AROUND; k <= AROUND; k++) {
    const v16 n = clamp(v16_add(scale0, v16_set1((float)k)), 0, 63), s = v16_mul(d, n), id = ratio(v16_set1(1), s);
    const v16 c0 = v16_add(v16_mul(dmin, min0), low); /* x + min = y + c0 */
    const level_sums l = round_parts(y, w, B, id, v16_mul(c0, id), top);
    const v16 c = v16_sub(ratio(v16_sub(v16_mul(s, l.q), t.y), t.w), low); /* the best minimum */
    const v16 m = clamp(nearest(v16_mul(c, id_min)), 0, 63);
    const v16 e = fit_error(&t, &l, s, v16_neg(v16_add(v16_mul(dmin, m), low)));
    const m16 better = v16_lt(e, best);
    best = v16_select(better, e, best), best_scale = v16_select(better, n, best_scale), best_min = v16_select(better, m, best_min);
  }
  v16_store(r->scale, best_scale);
  v16_store(r->min, best_min);
}

/* Six bits each: parts 0..3 in the low bits of bytes 0..7, parts 4..7 in bytes 8..11 and on top of those. */
WR_INLINE void store_six_bits(uint8_t *p, const float *scale, const float *min) {
  for (int i = 0; i < 4; i++) {
    const unsigned s = (unsigned)scale[i + 4], m = (unsigned)min[i + 4];
    p[i] = (uint8_t)((unsigned)scale[i] | s >> 4 << 6);
    p[i + 4] = (uint8_t)((unsigned)min[i] | m >> 4 << 6);
    p[i + 8] = (uint8_t)((s & 15) | (m & 15) << 4);
  }
}

WR_INLINE void store_pair_block(const float *x, uint8_t *p, const float *scale, const float *min, float d, float dmin, float top) {
  write_half(p, d), write_half(p + 2, dmin);
  store_six_bits(p + 4, scale, min);
  v16i high[2] = {v16i_zero(), v16i_zero()};
  uint8_t *nibbles = p + (top > 15 ? 48 : 16);
  for (int part = 0; part < 8; part += 2, nibbles += 32)
    for (int h = 0; h < 2; h++) { /* sixteen elements of this part and of the next, which share bytes */
      v16i q[2];
      for (int k = 0; k < 2; k++) {
        const float s = d * scale[part + k], m = dmin * min[part + k];
        const v16 v = v16_add(v16_load(x + B * (part + k) + 16 * h), v16_set1(m));
        q[k] = v16_round_i32(clamp(v16_mul(v, v16_set1(s > 0 ? 1 / s : 0)), 0, top));
      }
      high[h] = v16i_or(high[h], v16i_shl(v16i_or(v16i_shr(q[0], 4), v16i_shl(v16i_shr(q[1], 4), 1)), part));
      store_nibbles(nibbles + 16 * h, q[0], q[1]);
    }
  if (top > 15) store_bytes(p + 16, high[0]), store_bytes(p + 32, high[1]);
}

WR_INLINE void pair_blocks(const float *src, uint8_t *dst, int64_t n, float top, int bytes) {
  for (int64_t i = 0; i < n; i += 2 * SUPER, dst += 2 * bytes) {
    const int blocks = n - i > SUPER ? 2 : 1;
    const float *const block[2] = {src + i, src + i + (blocks - 1) * SUPER};
    pair_scales r;
    fit_pair(block, top, &r);
    for (int b = 0; b < blocks; b++)
      store_pair_block(block[b], dst + b * bytes, r.scale + 8 * b, r.min + 8 * b, r.d[b], r.dmin[b], top);
  }
}

void QUANT(Q4_K)(const float *src, void *dst, int64_t n) { pair_blocks(src, dst, n, 15, 144); }
void QUANT(Q5_K)(const float *src, void *dst, int64_t n) { pair_blocks(src, dst, n, 31, 176); }

/* Scales of sixteen parts of sixteen elements, as integers -128..127, and their unit. The element of largest magnitude decides
 * the sign: it goes to the side that has one level more. */
WR_INLINE float fit_parts(const float *src, float scale[16]) {
  enum { TRIES = 19 };
  float x[SUPER];
  for (int l = 0; l < 16; l++)
    for (int j = 0; j < 16; j++) x[16 * j + l] = src[16 * l + j];
  v16 extreme = v16_zero();
  for (int j = 0; j < 16; j++) {
    const v16 v = v16_load(x + 16 * j);
    extreme = v16_select(v16_lt(v16_abs(extreme), v16_abs(v)), v, extreme);
  }
  const m16 some = positive(v16_abs(extreme));
  v16 best = v16_zero(), s = v16_zero();
  for (int k = 0; k < TRIES; k++) {
    const float step = 0.1f * (float)((k + 1) / 2); /* from the middle, to either side in turn */
    const v16 id = v16_select(some, v16_div(v16_set1(-32 - (k % 2 ? step : -step)), extreme), v16_zero());
    v16 qq = v16_zero(), qx = v16_zero();
    for (int j = 0; j < 16; j++) {
      const v16 v = v16_load(x + 16 * j), q = nearest(clamp(v16_mul(v, id), -32, 31)), wq = v16_mul(v16_mul(v, v), q);
      qq = v16_fma(wq, q, qq);
      qx = v16_fma(wq, v, qx);
    }
    const v16 ls = ratio(qx, qq), gain = v16_mul(ls, qx); /* the error is sum w x^2 less this */
    const m16 better = v16_lt(v16_mul(best, v16_set1(1 + 0x1p-20f)), gain);
    best = v16_select(better, gain, best), s = v16_select(better, ls, s);
  }
  v16_store(scale, s);
  float max = 0;
  for (int i = 0; i < 16; i++)
    if (__builtin_fabsf(scale[i]) > __builtin_fabsf(max)) max = scale[i];
  const float d = rounded_half(max / -128);
  v16_store(scale, clamp(nearest(v16_mul(s, v16_set1(d != 0 ? 1 / d : 0))), -128, 127));
  return d;
}

void QUANT(Q6_K)(const float *src, void *dst, int64_t n) {
  uint8_t *p = dst;
  for (int64_t i = 0; i < n; i += SUPER, p += 210) {
    float scale[16];
    const float d = fit_parts(src + i, scale);
    for (int half = 0; half < 2; half++) /* 128 elements: four runs of 32 share bytes */
      for (int part = 0; part < 2; part++) {
        v16i q[4];
        for (int run = 0; run < 4; run++) {
          const float s = d * scale[8 * half + 2 * run + part];
          const v16 v = v16_mul(v16_load(src + i + 128 * half + B * run + 16 * part), v16_set1(s != 0 ? 1 / s : 0));
          q[run] = v16i_add(v16_round_i32(clamp(v, -32, 31)), v16i_set1(32));
        }
        uint8_t *low = p + 64 * half + 16 * part;
        store_nibbles(low, q[0], q[2]);
        store_nibbles(low + 32, q[1], q[3]);
        v16i high = v16i_zero();
        for (int run = 3; run >= 0; run--) high = v16i_or(v16i_shl(high, 2), v16i_shr(q[run], 4));
        store_bytes(p + 128 + B * half + 16 * part, high);
      }
    store_bytes(p + 192, v16_round_i32(v16_load(scale)));
    write_half(p + 208, d);
  }
}

/* ------------------------------------------------------------------------------------------------------------------- errors */

void QUANT(error)(const float *x, const float *y, int64_t n, wr_quant_error *e) {
  enum { RUN = 1024 }; /* added up in FP32 */
  v16 max = v16_zero();
  for (int64_t from = 0; from < n; from += RUN) {
    const int64_t end = WR_MIN(from + RUN, n);
    v16 square = v16_zero(), error = v16_zero();
    for (int64_t i = from; i < end; i += WR_LANES) {
      const int m = wr_lanes(end - i);
      const v16 a = v16_load_n(x + i, m), d = v16_sub(a, v16_load_n(y + i, m));
      square = v16_fma(a, a, square), error = v16_fma(d, d, error), max = v16_max(max, v16_abs(d));
    }
    e->square += (double)v16_sum(square);
    e->error_square += (double)v16_sum(error);
  }
  const float most = v16_hmax(max);
  if (most > e->max_error) e->max_error = most;
}

/* Fast rows of matmul over weights in layout pack16: a vector lane is an output row, so that no sum crosses lanes.
 *
 * Quantised weights (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1), class q8k32. A row of x is quantised in blocks of 32:
 *   d = amax / 127, q = nearest even of x * (127 / amax), int8; and the block's integer sum s.
 * A lane of a block is then exact integer arithmetic, i = sum u * q started from -bias * s, u the unsigned quants as stored,
 * and
 *   acc = fma(dw * d, (float)i, acc)      and with a minimum (Q4_1, Q5_1)      acc = fma(mw, d * s, acc)      blocks ascending.
 * A block whose x is not finite has d = NaN, so that its outputs are NaN; one whose amax is below 1e-30 counts as zero.
 *
 * Float weights (F16, BF16, F32), class f32k: acc = fma(w, x, acc), k ascending.
 *
 * y = (acc + bias) + res. Order and rounding are those of one output element alone. So the number of rows, the tile, who takes
 * which group, and the instruction set change no bit.
 *
 * Rows of x are taken in tiles against tiles of groups, the weights read once from memory and then from the cache. Weights are
 * prefetched into the second-level cache, no further than to the end of the thread's own part. Quantised x comes about in two
 * ways:
 *   few    up to WR_MM_FEW_ROWS rows: every thread quantises them for itself, on its stack, so that no barrier is needed
 *   many   the threads quantise x together into scratch
 * Prefetch distance and tiles: doc/notes/0001-pack16.md.
 */
#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/matmul/matmul_i.h"
#include "ops/simd_i.h"

#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 16384
#endif
#ifndef QUANT_GROUPS
#define QUANT_GROUPS 1
#endif
#ifndef FLOAT_GROUPS
#define FLOAT_GROUPS 4
#endif
#ifndef GRAIN
#define GRAIN 8
#endif

/* ------------------------------------------------------------------------------------------------------ weights of a type */

/* All of these are constants after inlining. */
WR_INLINE bool is_quant(wr_dtype t) { return t != WR_F32 && t != WR_F16 && t != WR_BF16; }
WR_INLINE int quant_bits(wr_dtype t) { return t == WR_Q8_0 ? 8 : t == WR_Q4_0 || t == WR_Q4_1 ? 4 : 5; }
WR_INLINE int quant_bias(wr_dtype t) { return t == WR_Q8_0 ? 128 : t == WR_Q4_0 ? 8 : t == WR_Q5_0 ? 16 : 0; }
WR_INLINE int quant_scales(wr_dtype t) { return t == WR_Q4_1 || t == WR_Q5_1 ? 2 : 1; }
WR_INLINE int float_bytes(wr_dtype t) { return t == WR_F32 ? 4 : 2; }

WR_INLINE v16 load_weight(wr_dtype t, const uint8_t *p) {
  if (t == WR_F32) return v16_load((const float *)p);
  return t == WR_F16 ? v16_load_f16((const uint16_t *)p) : v16_load_bf16((const uint16_t *)p);
}

/* The matrix as the loops see it. */
typedef struct weights {
  const uint8_t *data;
  size_t stride, quants; /* bytes of a group; offset of its quant area */
  int64_t K, N;
} weights;

WR_INLINE weights weights_of(wr_dtype t, const wr_call *c) {
  const wr_arg *w = &c->args[WR_MM_W];
  weights r = {.data = w->data, .K = wr_inner(w), .N = w->ext[0]};
  r.stride = wr_layout_row_bytes(WR_PACK16, t, r.K);
  r.quants = is_quant(t) ? r.stride - (size_t)r.K * (size_t)quant_bits(t) * 2 : 0;
  return r;
}

/* ------------------------------------------------------------------------------------------------------- quantised activations
 * */

/* A row of x as wr_mm_xq_bytes describes it. The correction of a block is the integer -bias * s, or, for types with a minimum,
 * the float d * s. */
WR_INLINE void quantise_row(wr_dtype t, const float *x, int64_t K, uint8_t *dst) {
  const v16i magnitude = v16i_set1(0x7fffffff);
  float *d = (float *)(dst + K);
  uint8_t *correction = dst + K + K / 8;
  for (int64_t b = 0; b < K / 32; b++) {
    v16 lo = v16_load(x + 32 * b), hi = v16_load(x + 32 * b + 16);
    /* as integers, so that NaN counts as larger than all else */
    int32_t top = v16i_hmax(v16i_max(v16i_and(v16_bits(lo), magnitude), v16i_and(v16_bits(hi), magnitude)));
    float amax, scale = 0, inverse = 0;
    memcpy(&amax, &top, sizeof amax);
    if (top >= 0x7f800000) scale = __builtin_nanf("");
    else if (amax > 1e-30f) scale = amax / 127, inverse = 127 / amax;
    v16i qlo = v16_round_i32(v16_mul(lo, v16_set1(inverse))), qhi = v16_round_i32(v16_mul(hi, v16_set1(inverse)));
    v16i_store_i8((int8_t *)dst + 32 * b, qlo);
    v16i_store_i8((int8_t *)dst + 32 * b + 16, qhi);
    d[b] = scale;
    int32_t s = top >= 0x7f800000 ? 0 : v16i_sum(v16i_add(qlo, qhi)), biased = -quant_bias(t) * s;
    float scaled = scale * (float)s;
    if (quant_scales(t) == 2) memcpy(correction + 4 * b, &scaled, 4);
    else memcpy(correction + 4 * b, &biased, 4);
  }
}

/* -------------------------------------------------------------------------------------------------------------------- tiles */

/* Prefetch the line at p + PREFETCH_BYTES unless that lies past the thread's part. */
WR_INLINE void ahead(const uint8_t *p, const uint8_t *limit) {
  const uint8_t *q = p + PREFETCH_BYTES;
  wr_prefetch_l2(q < limit ? q : p);
}

WR_INLINE int32_t read_i32(const uint8_t *p) {
  int32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Lines of one block in registers' form: line j of the low part and of the high part (4 and 5 bits), or of the whole (8 bits).
 * */
WR_INLINE void quant_line(int bits, const uint8_t *lines, int j, v16i *lo, v16i *hi) {
  const v16i low = v16i_set1(0x0f0f0f0f), ones = v16i_set1(0x01010101);
  *lo = *hi = v16i_load(lines + 64 * j);
  if (bits == 8) return;
  *lo = v16i_and(*lo, low);
  *hi = v16i_and(v16i_shr(*hi, 4), low);
  if (bits == 4) return;
  const v16i fifth = v16i_shr(v16i_load(lines + 64 * 4), j);
  *lo = v16i_or(*lo, v16i_shl(v16i_and(fifth, ones), 4));
  *hi = v16i_or(*hi, v16i_shl(v16i_and(v16i_shr(fifth, 4), ones), 4));
}

/* R rows of quantised x against one group. */
WR_INLINE void quant_tile(wr_dtype t, int R, const weights *w, const uint8_t *base, const uint8_t *x, size_t x_stride,
                          const uint8_t *limit, v16 *acc) {
  const int bits = quant_bits(t), n_scales = quant_scales(t);
  const int64_t K = w->K, blocks = K / 32;
  const uint16_t *scales = (const uint16_t *)base;
  const uint8_t *lines = base + w->quants;
  for (int r = 0; r < R; r++) acc[r] = v16_zero();
  for (int64_t b = 0; b < blocks; b++) {
    v16i sum[WR_MM_MAX_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
      sum[r] = n_scales == 2 ? v16i_zero() : v16i_set1(read_i32(x + (size_t)r * x_stride + K + K / 8 + 4 * b));
#pragma GCC unroll 8
    for (int j = 0; j < bits; j++) ahead(lines + 64 * j, limit);
    if (n_scales == 2 || !(b & 1)) ahead((const uint8_t *)scales, limit);
    const int n_lines = bits == 8 ? 8 : 4;
#pragma GCC unroll 8
    for (int j = 0; j < n_lines; j++) {
      v16i lo, hi;
      quant_line(bits, lines, j, &lo, &hi);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const uint8_t *xk = x + (size_t)r * x_stride + 32 * b + 4 * j;
        if (bits == 8) sum[r] = v16i_dot4(sum[r], lo, v16i_set1(read_i32(xk)));
        else sum[r] = v16i_dot4_u7(v16i_dot4_u7(sum[r], lo, v16i_set1(read_i32(xk))), hi, v16i_set1(read_i32(xk + 16)));
      }
    }
    const v16 dw = v16_load_f16(scales), mw = n_scales == 2 ? v16_load_f16(scales + 16) : dw;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const float *d = (const float *)(x + (size_t)r * x_stride + K) + b;
      acc[r] = v16_fma(v16_mul(dw, v16_set1(d[0])), v16_from_i32(sum[r]), acc[r]);
      if (n_scales == 2) acc[r] = v16_fma(mw, v16_set1(d[blocks]), acc[r]);
    }
    lines += 64 * bits;
    scales += 16 * n_scales;
  }
}

/* R rows of x against G groups of float weights. */
WR_INLINE void float_tile(wr_dtype t, int R, int G, const weights *w, const uint8_t *const *base, const uint8_t *x, size_t x_stride,
                          const uint8_t *limit, v16 *acc) {
  const int step = 16 * float_bytes(t), per_line = 64 / step; /* columns in a line */
  const int64_t K = w->K;
#pragma GCC unroll 32
  for (int i = 0; i < R * G; i++) acc[i] = v16_zero();
  for (int64_t k = 0; k < K; k += per_line) {
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) ahead(base[g] + k * step, limit);
#pragma GCC unroll 2
    for (int i = 0; i < per_line; i++) {
      if (i && k + i >= K) break;
      v16 column[WR_MM_MAX_GROUPS];
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) column[g] = load_weight(t, base[g] + (k + i) * step);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const v16 xk = v16_set1(((const float *)(x + (size_t)r * x_stride))[k + i]);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) acc[r * G + g] = v16_fma(column[g], xk, acc[r * G + g]);
      }
    }
  }
}

/* y of R rows from `row` and one group: the accumulators, bias and residual. */
WR_INLINE void finish(const wr_call *c, int64_t row, int64_t group, int R, const v16 *acc, int acc_step) {
  const wr_arg *bias = &c->args[WR_MM_BIAS], *res = &c->args[WR_MM_RES], *y = &c->args[WR_MM_Y];
  const int64_t n = group * 16;
  const int live = (int)WR_MIN(wr_inner(y) - n, (int64_t)16);
  const v16 add = bias->data ? v16_load_n((const float *)bias->data + n, live) : v16_zero();
  for (int r = 0; r < R; r++) {
    v16 v = acc[r * acc_step];
    if (bias->data) v = v16_add(v, add);
    if (res->data) v = v16_add(v, v16_load_n(wr_arg_f32(res, row + r) + n, live));
    v16_store_n(wr_arg_f32(y, row + r) + n, v, live);
  }
}

/* R rows from `row` against up to G groups from `group`; groups that are not there (past `end`) are computed as the last and
 * dropped. */
WR_INLINE void tile(wr_dtype t, int R, int G, const wr_call *c, const weights *w, int64_t row, int64_t group, int64_t end,
                    const uint8_t *x, size_t x_stride, const uint8_t *limit) {
  v16 acc[WR_MM_MAX_ROWS * WR_MM_MAX_GROUPS];
  const uint8_t *base[WR_MM_MAX_GROUPS];
  x += (size_t)row * x_stride;
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) base[g] = w->data + (size_t)WR_MIN(group + g, end - 1) * w->stride;
  if (is_quant(t)) quant_tile(t, R, w, base[0], x, x_stride, limit, acc);
  else float_tile(t, R, G, w, base, x, x_stride, limit, acc);
#pragma GCC unroll 4
  for (int g = 0; g < G; g++)
    if (group + g < end) finish(c, row, group + g, R, acc + g, G);
}

/* --------------------------------------------------------------------------------------------------------------------- forms
 * */

typedef void tile_fn(const wr_call *c, const weights *w, int64_t row, int64_t group, int64_t end, const uint8_t *x,
                     size_t x_stride, const uint8_t *limit);
typedef struct tile_row { int rows, groups; tile_fn *run; } tile_row;

/* All rows of x against the groups that wr_take hands out, the tallest tiles first. */
static void run_tiles(const tile_row *tiles, const wr_call *c, const wr_worker *worker, const weights *w, int phase,
                      const uint8_t *x, size_t x_stride) {
  const int64_t rows = wr_live_rows(c, WR_MM_X), groups = (w->N + 15) / 16;
  /* the end of what this thread will read first: its own contiguous part of wr_take */
  const uint8_t *limit = w->data + (size_t)(groups * (worker->tid + 1) / worker->n_threads) * w->stride;
  int64_t begin, end;
  while (wr_take(worker, phase, groups, GRAIN, &begin, &end)) {
    for (int64_t g = begin; g < end; g += WR_MM_MAX_GROUPS) {
      const int64_t to = WR_MIN(g + WR_MM_MAX_GROUPS, end);
      int64_t r = 0;
      for (const tile_row *t = tiles; r < rows; t++)
        for (; r + t->rows <= rows; r += t->rows)
          for (int64_t at = g; at < to; at += t->groups) t->run(c, w, r, at, to, x, x_stride, limit);
    }
  }
}

#define TILE(name, dtype, R, G) \
  static void name##_##R(const wr_call *c, const weights *w, int64_t row, int64_t group, int64_t end, const uint8_t *x, \
                         size_t x_stride, const uint8_t *limit) { \
    tile(dtype, R, G, c, w, row, group, end, x, x_stride, limit); \
  }

/* Tiles: rows of x against groups, as many accumulators as the registers hold. */
#if WR_ISA_LEVEL >= 2
#define QUANT_TILES(name, dtype) \
  TILE(name, dtype, 12, 1) TILE(name, dtype, 4, 1) TILE(name, dtype, 1, 1) \
  static const tile_row name##_tiles[] = {{12, 1, name##_12}, {4, 1, name##_4}, {1, 1, name##_1}};
#define FLOAT_TILES(name, dtype) \
  TILE(name, dtype, 12, 2) TILE(name, dtype, 4, 4) TILE(name, dtype, 1, 4) \
  static const tile_row name##_tiles[] = {{12, 2, name##_12}, {4, 4, name##_4}, {1, 4, name##_1}};
#elif WR_ISA_LEVEL == 1
#define QUANT_TILES(name, dtype) \
  TILE(name, dtype, 4, 1) TILE(name, dtype, 1, 1) \
  static const tile_row name##_tiles[] = {{4, 1, name##_4}, {1, 1, name##_1}};
#define FLOAT_TILES(name, dtype) \
  TILE(name, dtype, 4, 1) TILE(name, dtype, 1, 4) \
  static const tile_row name##_tiles[] = {{4, 1, name##_4}, {1, 4, name##_1}};
#else
#define QUANT_TILES(name, dtype) \
  TILE(name, dtype, 1, 1) \
  static const tile_row name##_tiles[] = {{1, 1, name##_1}};
#define FLOAT_TILES(name, dtype) QUANT_TILES(name, dtype)
#endif

WR_INLINE void few(wr_dtype t, const tile_row *tiles, const wr_call *c, const wr_worker *worker) {
  const wr_arg *x = &c->args[WR_MM_X];
  const weights w = weights_of(t, c);
  const int64_t rows = wr_live_rows(c, WR_MM_X);
  const size_t stride = wr_mm_xq_bytes(w.K);
  uint8_t room[WR_MM_FEW_BYTES] __attribute__((aligned(64)));
  for (int64_t r = 0; r < rows; r++)
    quantise_row(t, wr_arg_f32(x, r), w.K, room + (size_t)r * stride);
  run_tiles(tiles, c, worker, &w, 0, room, stride);
}

WR_INLINE void many(wr_dtype t, const tile_row *tiles, const wr_call *c, const wr_worker *worker) {
  const wr_arg *x = &c->args[WR_MM_X];
  const weights w = weights_of(t, c);
  const size_t stride = wr_mm_xq_bytes(w.K);
  uint8_t *xq = c->scratch;
  int64_t begin, end;
  while (wr_take(worker, 0, wr_live_rows(c, WR_MM_X), 4, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      quantise_row(t, wr_arg_f32(x, r), w.K, xq + (size_t)r * stride);
  wr_barrier(worker);
  run_tiles(tiles, c, worker, &w, 1, xq, stride);
}

#define QUANT_FORMS(name, dtype) \
  QUANT_TILES(name, dtype) \
  WR_ROW_FN(WR_KERNEL(matmul_##name##_few_cpu)); \
  WR_ROW_FN(WR_KERNEL(matmul_##name##_many_cpu)); \
  WR_ROW_FN(WR_KERNEL(matmul_##name##_few_cpu)) { few(dtype, name##_tiles, c, w); } \
  WR_ROW_FN(WR_KERNEL(matmul_##name##_many_cpu)) { many(dtype, name##_tiles, c, w); }

#define FLOAT_FORMS(name, dtype) \
  FLOAT_TILES(name, dtype) \
  WR_ROW_FN(WR_KERNEL(matmul_##name##_cpu)); \
  WR_ROW_FN(WR_KERNEL(matmul_##name##_cpu)) { \
    const weights m = weights_of(dtype, c); \
    run_tiles(name##_tiles, c, w, &m, 0, c->args[WR_MM_X].data, (size_t)c->args[WR_MM_X].stride_bytes); \
  }

QUANT_FORMS(q8_0, WR_Q8_0)
QUANT_FORMS(q4_0, WR_Q4_0)
QUANT_FORMS(q4_1, WR_Q4_1)
QUANT_FORMS(q5_0, WR_Q5_0)
QUANT_FORMS(q5_1, WR_Q5_1)
FLOAT_FORMS(f16, WR_F16)
FLOAT_FORMS(bf16, WR_BF16)
FLOAT_FORMS(f32, WR_F32)

/* Fast rows of matmul over weights in layout pack16: a vector lane is an output row, so that no sum crosses lanes.
 *
 * Quantised weights, class q8k32: rows of x in int8 by blocks of 32, see matmul_quant_i.h.
 * A lane of a block is then exact integer arithmetic, i = sum u * q started from -bias * s, u the unsigned quants as stored,
 * and
 *   acc = fma(dw * d, (float)i, acc)      and with a minimum (Q4_1, Q5_1)      acc = fma(mw, d * s, acc)      blocks ascending.
 *
 * Float weights (F16, BF16, F32), class f32k: acc = fma(w, x, acc), k ascending.
 *
 * y = (acc + bias) + res, or with a fused gate act(acc) * (acc of up). A fused norm is applied to a row of x just before it is quantised.
 * Order and rounding are those of one output element alone. So the number of rows, the tile, who takes
 * which group, and the instruction set change no bit.
 *
 * Rows of x are taken in tiles against tiles of groups, the weights read once from memory and then from the cache. The groups
 * of a tile are streams of their own. They are prefetched no further than to the end of the thread's part. Quantised x comes
 * about in two ways:
 *   few    up to WR_MM_FEW_ROWS rows: every thread quantises them for itself, on its stack, so that no barrier is needed
 *   many   the threads quantise x together into scratch
 * Prefetch distance and tiles: doc/notes/0001-pack16.md.
 */
#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_i.h"
#include "ops/matmul/matmul_quant_i.h"
#include "ops/matmul/matmul_tile_i.h"
#include "ops/norm_row_i.h"

enum {
  PREFETCH_BYTES = 12288, /* how far ahead of all streams of a tile together */
  GRAIN = 8,              /* groups that a thread takes at a time */
};

/* ------------------------------------------------------------------------------------------------------ weights of a type */

WR_INLINE int float_bytes(wr_dtype t) { return t == WR_F32 ? 4 : 2; }

WR_INLINE v16 load_weight(wr_dtype t, const uint8_t *p) {
  if (t == WR_F32) return v16_load((const float *)p);
  return t == WR_F16 ? v16_load_f16((const uint16_t *)p) : v16_load_bf16((const uint16_t *)p);
}

/* -------------------------------------------------------------------------------------------------------------------- tiles */

/* Where AVX-512 takes bytes up to 255 in its product, high nibbles stay where they are, 16 times their value; the sum of such
 * products is divided by 16 at the end, exactly. */
#if WR_ISA_LEVEL >= 2
enum { HIGH_SHIFT = 4 };
#else
enum { HIGH_SHIFT = 0 };
#endif

/* The scales of a block of a group, and the minima: those of its parts one after another, in F16 or as quant_scales made them. */
typedef struct block_scales {
  const void *scale, *minimum;
} block_scales;

WR_INLINE v16 load_scale(wr_dtype t, const void *scales, int part) {
  return wr_quant_of(t).scale_bits ? v16_load((const float *)scales + 16 * part) : v16_load_f16(scales);
}

/* A block of R rows of quantised x against one group. Two parts have a sum each; few rows keep two sums each anyway, so that products
 * need not wait for one another. */
WR_INLINE void quant_block(wr_dtype t, int R, const uint8_t *lines, block_scales scales, const uint8_t *x, size_t ahead,
                           v16 *acc, int acc_step) {
  const int bits = wr_quant_of(t).bits, parts = quant_parts(t);
  const bool minimum = wr_quant_of(t).minimum;
  const bool two = parts == 2 || R == 1 || (R <= 4 && WR_ISA_LEVEL >= 2);
  const int shift = two && bits == 4 && parts == 1 && !wr_quant_of(t).table ? HIGH_SHIFT : 0;
  const uint8_t *x_scales = x + 32 * R;
  v16i sum[WR_MM_MAX_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    for (int h = 0; h < 2; h++)
      sum[r][h] = h < parts && !minimum ? v16i_set1(read_i32(x_scales + XQ_SCALES * r + 4 + 4 * h)) : v16i_zero();
#pragma GCC unroll 8
  for (int j = 0; j < bits; j++) wr_prefetch(lines + 64 * j + ahead);
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    v16i lo, hi;
    quant_line(t, shift, lines, j, &lo, &hi);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const uint8_t *xk = x + 32 * r + 4 * j;
      sum[r][0] = quant_dot(t, sum[r][0], lo, v16i_set1(read_i32(xk)));
      sum[r][two] = quant_dot(t, sum[r][two], hi, v16i_set1(read_i32(xk + 16)));
    }
  }
#pragma GCC unroll 2
  for (int part = 0; part < parts; part++) {
    const v16 dw = load_scale(t, scales.scale, part), mw = minimum ? load_scale(t, scales.minimum, part) : dw;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const uint8_t *scale = x_scales + XQ_SCALES * r;
      const v16i whole = two && parts == 1 ? v16i_add(sum[r][0], v16i_sar(sum[r][1], shift)) : sum[r][part];
      v16 *a = &acc[r * acc_step];
      *a = v16_fma(v16_mul(dw, v16_set1(read_f32(scale))), v16_from_i32(whole), *a);
      if (minimum) *a = v16_fma(mw, v16_set1(read_f32(scale + 4 + 4 * part)), *a);
    }
  }
}

/* Groups of a tile are read side by side: the hardware's own prefetchers follow several streams better than one. Each stream
 * prefetches ahead within its group first, and near its end where the same group of the next tile begins. */
WR_INLINE size_t stream_ahead(int G, size_t stride) { return WR_MIN((size_t)PREFETCH_BYTES / (size_t)G, stride) & ~(size_t)63; }

/* quant_scales for any type: long code, little of the time. */
static __attribute__((noinline)) void decode_scales(wr_dtype t, const uint8_t *halves, const uint8_t *words, float *out) {
  switch (t) {
#define QUANT(name, ...) \
  case WR_##name: \
    if (wr_quant_of(WR_##name).scale_bits) quant_scales(WR_##name, halves, words, out); \
    return;
#include "core/quant.def"
#undef QUANT
  default: return;
  }
}

/* All blocks of R rows of quantised x against G groups; next: bytes from a group to its successor in the next tile, 0: none to
 * prefetch. */
WR_INLINE void quant_tile(wr_dtype t, int R, int G, const weights *w, const uint8_t *const *base, const uint8_t *x, size_t next,
                          v16 *out) {
  enum { BLOCKS = 8 }; /* of 32 elements in one of 256 */
  const wr_quant form = wr_quant_of(t);
  const int64_t line_bytes = 64 * form.bits, half_bytes = 32 + 32 * form.minimum, blocks = w->K / 32;
  const int parts = quant_parts(t), super = form.scale_bits != 0, n_words = wr_quant_words(form);
  const size_t ahead = stream_ahead(G, w->stride);
  const int64_t here = WR_MAX(((int64_t)(w->stride - w->quants) - (int64_t)ahead) / line_bytes, (int64_t)0);
  float room[WR_MM_MAX_GROUPS][32 * 16] __attribute__((aligned(64)));
  v16 acc[WR_MM_MAX_ROWS * WR_MM_MAX_GROUPS];
#pragma GCC unroll 16
  for (int i = 0; i < R * G; i++) acc[i] = v16_zero();
  for (int64_t b = 0; b < blocks; b++) {
    const size_t to = b < here ? ahead : next ? ahead + next - w->stride : 0;
    const int64_t unit = super ? b / BLOCKS : b, in = b % BLOCKS * parts * 16;
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      const uint8_t *halves = base[g] + unit * half_bytes, *words = base[g] + w->words + unit * n_words * 64;
      const bool first = !super || b % BLOCKS == 0;
      block_scales scales = {halves, halves + 32};
      if (first && (half_bytes == 64 || !(unit & 1))) wr_prefetch(halves + to);
      if (super) {
#pragma GCC unroll 8
        for (int i = 0; first && i < n_words; i++) wr_prefetch(words + 64 * i + to);
        if (first) decode_scales(t, halves, words, room[g]);
        scales = (block_scales){room[g] + in, room[g] + 16 * BLOCKS * parts + in};
      }
      quant_block(t, R, base[g] + w->quants + b * line_bytes, scales, x + b * R * XQ_BLOCK, to, acc + g, G);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * G; i++) out[i] = acc[i];
}

/* Columns [k, end) of R rows of x against G groups of float weights. */
WR_INLINE void float_columns(wr_dtype t, int R, int G, const uint8_t *const *base, const uint8_t *x, size_t x_stride, int64_t k,
                             int64_t end, size_t ahead, v16 *acc) {
  const int step = 16 * float_bytes(t), per_line = 64 / step; /* columns in a line */
  for (; k < end; k += per_line) {
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) wr_prefetch(base[g] + k * step + ahead);
#pragma GCC unroll 2
    for (int i = 0; i < per_line; i++) {
      if (i && k + i >= end) break;
      v16 column[WR_MM_MAX_GROUPS];
#pragma GCC unroll 8
      for (int g = 0; g < G; g++) column[g] = load_weight(t, base[g] + (k + i) * step);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const v16 xk = v16_set1(((const float *)(x + (size_t)r * x_stride))[k + i]);
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) acc[r * G + g] = v16_fma(column[g], xk, acc[r * G + g]);
      }
    }
  }
}

WR_INLINE void float_tile(wr_dtype t, int R, int G, const weights *w, const uint8_t *const *base, const uint8_t *x,
                          size_t x_stride, size_t next, v16 *out) {
  const size_t ahead = stream_ahead(G, w->stride);
  const int64_t here = WR_MAX(((int64_t)w->stride - (int64_t)ahead) / 64 * 64 / (16 * float_bytes(t)), (int64_t)0);
  v16 acc[WR_MM_MAX_ROWS * WR_MM_MAX_GROUPS];
#pragma GCC unroll 32
  for (int i = 0; i < R * G; i++) acc[i] = v16_zero();
  float_columns(t, R, G, base, x, x_stride, 0, WR_MIN(here, w->K), ahead, acc);
  float_columns(t, R, G, base, x, x_stride, here, w->K, next ? ahead + next - w->stride : 0, acc);
#pragma GCC unroll 32
  for (int i = 0; i < R * G; i++) out[i] = acc[i];
}

/* R rows from `row` against up to G groups from `group`; groups that are not there (past `end`) are computed as the last and
 * dropped. */
WR_INLINE void tile(wr_dtype t, int R, int G, const wr_call *c, const weights *w, int64_t row, int64_t group, int64_t end,
                    const uint8_t *x, size_t x_stride, int64_t limit) {
  v16 acc[2][WR_MM_MAX_ROWS * WR_MM_MAX_GROUPS];
  const uint8_t *base[WR_MM_MAX_GROUPS];
  const int matrices = is_quant(t) && w->up ? 2 : 1;
  x += (size_t)row * x_stride; /* quantised x: rows before this tile take as much as they would alone */
#pragma GCC unroll 1
  for (int m = 0; m < matrices; m++) {
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) base[g] = (m ? w->up : w->data) + (size_t)WR_MIN(group + g, end - 1) * w->stride;
    const size_t next = group + 2 * G <= limit ? (size_t)G * w->stride : 0;
    if (is_quant(t))
      quant_tile(t, R, G, w, base, x, next, acc[m]);
    else
      float_tile(t, R, G, w, base, x, x_stride, next, acc[m]);
  }
  for (int g = 0; g < G && group + g < end; g++)
    if (matrices == 1)
      finish(c, row, group + g, R, acc[0] + g, G);
    else
      finish_gate(c, row, group + g, R, acc[0] + g, acc[1] + g, G);
}

/* --------------------------------------------------------------------------------------------------------------------- forms
 * */

typedef void tile_fn(const wr_call *c, const weights *w, int64_t row, int64_t group, int64_t end, const uint8_t *x,
                     size_t x_stride, int64_t limit);
typedef struct tile_row {
  int rows, groups;
  tile_fn *run;
} tile_row;

/* The first lines of weights that this thread will read in a call, so that it does not begin by waiting for memory: the heads of its first
 * four groups. Asked for at the end of the call before, and again while x is being quantised, for what has been pushed out in between. */
static void fetch_first(const wr_call *c, const wr_worker *worker) {
  const wr_arg *w = &c->args[WR_MM_W];
  if (w->layout != WR_PACK16 || c->args[WR_MM_X].ext[0] > WR_MM_FEW_ROWS) return;
  const size_t stride = wr_layout_row_bytes(WR_PACK16, (wr_dtype)w->dtype, wr_inner(w)), ahead = stream_ahead(4, stride);
  const int64_t groups = (w->ext[0] + 15) / 16, first = groups * worker->tid / worker->n_threads;
  for (int64_t g = first; g < WR_MIN(first + 4, groups); g++)
    for (size_t at = 0; at < ahead; at += 64) wr_prefetch((const uint8_t *)w->data + (size_t)g * stride + at);
}

/* All rows of x against the groups that wr_take hands out, the tallest tiles first. */
static void run_tiles(const tile_row *tiles, const wr_call *c, const wr_worker *worker, const weights *w, int phase,
                      const uint8_t *x, size_t x_stride) {
  const int64_t rows = wr_live_rows(c, WR_MM_X), groups = (w->N + 15) / 16;
  const int64_t own = groups * worker->tid / worker->n_threads, own_end = groups * (worker->tid + 1) / worker->n_threads;
  int64_t begin, end;
  while (wr_take(worker, phase, groups, GRAIN, &begin, &end)) {
    /* what this thread is sure to read: the rest of its own part, or the piece that it took from another */
    const int64_t limit = begin >= own && begin < own_end ? own_end : end;
    for (int64_t g = begin; g < end; g += WR_MM_MAX_GROUPS) {
      const int64_t to = WR_MIN(g + WR_MM_MAX_GROUPS, end);
      int64_t r = 0;
      for (const tile_row *t = tiles; r < rows; t++)
        for (; r + t->rows <= rows; r += t->rows)
          for (int64_t at = g; at < to; at += t->groups) t->run(c, w, r, at, to, x, x_stride, r ? 0 : limit);
    }
  }
  if (c->next && rows <= WR_MM_FEW_ROWS) fetch_first(c->next, worker);
}

#define TILE(name, dtype, R, G) \
  static void name##_##R(const wr_call *c, const weights *w, int64_t row, int64_t group, int64_t end, const uint8_t *x, \
                         size_t x_stride, int64_t limit) { \
    tile(dtype, R, G, c, w, row, group, end, x, x_stride, limit); \
  }

/* Tiles: rows of x against groups, as many accumulators as the registers hold. */
#if WR_ISA_LEVEL >= 2
  #define QUANT_TILES(name, dtype) \
    TILE(name, dtype, 12, 1) \
    TILE(name, dtype, 4, 1) \
    TILE(name, dtype, 1, 4) static const tile_row name##_tiles[] = {{12, 1, name##_12}, {4, 1, name##_4}, {1, 4, name##_1}};
  #define FLOAT_TILES(name, dtype) \
    TILE(name, dtype, 12, 2) \
    TILE(name, dtype, 4, 4) \
    TILE(name, dtype, 1, 4) static const tile_row name##_tiles[] = {{12, 2, name##_12}, {4, 4, name##_4}, {1, 4, name##_1}};
#elif WR_ISA_LEVEL == 1
  #define QUANT_TILES(name, dtype) \
    TILE(name, dtype, 4, 1) TILE(name, dtype, 1, 1) static const tile_row name##_tiles[] = {{4, 1, name##_4}, {1, 1, name##_1}};
  #define FLOAT_TILES(name, dtype) \
    TILE(name, dtype, 4, 1) TILE(name, dtype, 1, 4) static const tile_row name##_tiles[] = {{4, 1, name##_4}, {1, 4, name##_1}};
#else
  #define QUANT_TILES(name, dtype) \
    TILE(name, dtype, 1, 1) \
    static const tile_row name##_tiles[] = {{1, 1, name##_1}};
  #define FLOAT_TILES(name, dtype) QUANT_TILES(name, dtype)
#endif

/* Rows [begin, end) of x, each into its place in the tile that run_tiles will take it with. normal: room for a row. */
static __attribute__((noinline)) void quantise_rows(const tile_row *tiles, const wr_call *c, int64_t begin, int64_t end,
                                                    float *normal, uint8_t *dst) {
  const wr_dtype t = (wr_dtype)c->args[WR_MM_W].dtype;
  const wr_arg *x = &c->args[WR_MM_X];
  const float *norm = c->args[WR_MM_NORM].data;
  const int64_t rows = wr_live_rows(c, WR_MM_X), K = wr_inner(x);
  int64_t first = 0; /* row of the tiles of this height */
  for (const tile_row *tile = tiles; first < end; tile++) {
    const int64_t past = first + (rows - first) / tile->rows * tile->rows;
    for (int64_t r = WR_MAX(begin, first); r < WR_MIN(end, past); r++) {
      const int64_t in_tile = (r - first) % tile->rows;
      const float *row = wr_arg_f32(x, r);
      if (norm) wr_rmsnorm_row(row, norm, K, ((const wr_matmul_params *)c->params)->eps, normal);
      quantise_row(t, norm ? normal : row, K, dst + (size_t)(r - in_tile) * wr_mm_xq_bytes(K), (int)in_tile, tile->rows);
    }
    first = past;
  }
}

WR_INLINE void few(wr_dtype t, const tile_row *tiles, const wr_call *c, const wr_worker *worker) {
  const weights w = weights_of(t, c);
  uint8_t room[WR_MM_FEW_BYTES] __attribute__((aligned(64)));
  float normal[WR_MM_FEW_K] __attribute__((aligned(64)));
  fetch_first(c, worker);
  quantise_rows(tiles, c, 0, wr_live_rows(c, WR_MM_X), normal, room);
  run_tiles(tiles, c, worker, &w, 0, room, wr_mm_xq_bytes(w.K));
}

WR_INLINE void many(wr_dtype t, const tile_row *tiles, const wr_call *c, const wr_worker *worker) {
  const weights w = weights_of(t, c);
  uint8_t *const normals = (uint8_t *)c->scratch + wr_mm_xq_area(c->args[WR_MM_X].ext[0], w.K);
  float *const normal = (float *)(void *)(normals + (size_t)worker->tid * wr_mm_normal_bytes(w.K));
  int64_t begin, end;
  while (wr_take(worker, 0, wr_live_rows(c, WR_MM_X), 4, &begin, &end)) quantise_rows(tiles, c, begin, end, normal, c->scratch);
  wr_barrier(worker);
  run_tiles(tiles, c, worker, &w, 1, c->scratch, wr_mm_xq_bytes(w.K));
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
QUANT_FORMS(q2_k, WR_Q2_K)
QUANT_FORMS(q3_k, WR_Q3_K)
QUANT_FORMS(q4_k, WR_Q4_K)
QUANT_FORMS(q5_k, WR_Q5_K)
QUANT_FORMS(q6_k, WR_Q6_K)
QUANT_FORMS(iq4_nl, WR_IQ4_NL)
QUANT_FORMS(iq4_xs, WR_IQ4_XS)
FLOAT_FORMS(f16, WR_F16)
FLOAT_FORMS(bf16, WR_BF16)
FLOAT_FORMS(f32, WR_F32)

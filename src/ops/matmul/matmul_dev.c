/* matmul on other devices than the CPU: see matmul.h for the equations.
 *
 * Quantised weights in layout pack16, class q8k32, the CPU's bits: one kernel quantises the rows of x (after their norm, where one is fused)
 * into scratch, another multiplies. Sums within a block of 32 are integers, so only the FP32 chain over the blocks has an order: ascending.
 *   few rows    a group has sixteen outputs of one row: four slices of items take blocks in turn, and leave their sums in SHARED, from where
 *               sixteen items chain them
 *   many rows   an item has one output of eight rows; a block of weights is decoded once for them
 * A type is a row of core/quant.def, read by ops/quant_dev.h. Quantised weights in plain rows, as a file has them, are for what is not packed: an item
 * has one output of one row or of eight, and unpacks a block after another.
 *
 * Float weights, packed or plain: a group has sixteen outputs of one row or of eight, in four slices: class slices4, summand k in the sum
 * k mod 4, each k ascending, then (0 + 1) + (2 + 3). */
#include "device/dialect.h"
#include "ops/act_dev.h"
#include "ops/norm_row_dev.h"
#include "ops/quant_dev.h"
#include "ops/types_dev.h"

enum { ITEMS = 64, LANES = 16, SLICES = ITEMS / LANES, ROUND = 8, FEW = 4, MANY = 8 };

/* ---- x in int8: of each row in scratch  i8 q[K] | f32 d[K / 32] | i32 s[K / 16], the sums of q over sixteen elements */

DEV i64 xq_bytes(i64 K) { return K / 32 * 44; }

typedef struct xq_row {
  GLOBAL u32 *q;
  GLOBAL f32 *d;
  GLOBAL i32 *s;
} xq_row;
DEV xq_row xq_at(GLOBAL u8 *scratch, i64 K, i64 r) {
  GLOBAL u8 *at = scratch + r * xq_bytes(K);
  xq_row x;
  x.q = (GLOBAL u32 *)at;
  x.d = (GLOBAL f32 *)(at + K);
  x.s = (GLOBAL i32 *)(at + K + K / 8);
  return x;
}

/* x, w, bias, res, norm; f: eps */
KERNEL(matmul_quantise_x, ITEMS, 5) {
  SHARED f32 room[ITEMS];
  const i64 r = group(0), K = INNER(0);
  if (r >= LIVE(0)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r), *weight = ARG(const f32, 4);
  const xq_row out = xq_at(SCRATCH(u8), K, r);
  f32 rstd = 1.0f;
  if (HAS(4)) rstd = norm_rstd(x, K, c->f[0], room);
  for (i64 b = item(); b < K / 32; b += ITEMS) {
    f32 v[32];
    u32 most = 0; /* as integers, so that NaN counts as larger than all else */
    for (i32 i = 0; i < 32; i++) {
      v[i] = HAS(4) ? x[32 * b + i] * rstd * weight[32 * b + i] : x[32 * b + i];
      const u32 magnitude = f32_bits(v[i]) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
    }
    const f32 amax = bits_f32(most);
    const i32 finite = most < 0x7f800000u, some = finite && amax > 1e-30f;
    const f32 inverse = some ? 127.0f / amax : 0.0f;
    out.d[b] = some ? amax / 127.0f : finite ? 0.0f : bits_f32(0x7fc00000u);
    for (i32 h = 0; h < 2; h++) {
      i32 sum = 0;
      for (i32 e = 4 * h; e < 4 * h + 4; e++) {
        u32 word = 0;
        for (i32 i = 0; i < 4; i++) {
          const i32 q = some ? (i32)f32_rint(v[4 * e + i] * inverse) : 0;
          sum += q;
          word |= ((u32)q & 255u) << (8 * i);
        }
        out.q[8 * b + e] = word;
      }
      out.s[2 * b + h] = sum;
    }
  }
}

/* ---- quantised weights */

/* What a part of a block adds to the chain of an output: scale * (f32)whole and, for types with a minimum, minimum * shift. */
typedef struct quant_sum {
  f32 scale, whole, minimum, shift;
} quant_sum;
DEV quant_sum quant_part(quant_form f, const quant_block *w, xq_row x, i64 b, i32 part) {
  const i32 words = f.part / 4, s = f.part == 32 ? x.s[2 * b] + x.s[2 * b + 1] : x.s[2 * b + part];
  const f32 d = x.d[b];
  i32 whole = -quant_bias(f) * s;
  for (i32 e = part * words; e < (part + 1) * words; e++) whole = quant_dot4(w->q[e], x.q[8 * b + e], whole);
  quant_sum out;
  out.scale = w->scale[part] * d;
  out.whole = (f32)whole;
  out.minimum = w->minimum[part];
  out.shift = d * (f32)s;
  return out;
}
DEV f32 quant_add(quant_form f, quant_sum s, f32 acc) {
  acc = f32_fma(s.scale, s.whole, acc);
  return f.minimum ? f32_fma(s.minimum, s.shift, acc) : acc;
}

/* Floats in SHARED of a block and lane, for each part: those of a quant_sum that f has. */
#define SUM_FLOATS(part, minimum) (32 / (part) * ((minimum) ? 4 : 2))

/* One row of x against the group of weights at `w`, by all items; the items of the first slice get the sums. */
DEV f32 quant_few(quant_form f, GLOBAL const u8 *w, xq_row x, i64 K, LOCAL f32 *room) {
  const i32 lane = item() % LANES, slice = item() / LANES, parts = 32 / f.part, floats = f.minimum ? 4 : 2;
  f32 acc = 0;
  for (i64 begin = 0; begin < K / 32; begin += ROUND) {
    const i32 n = (i32)(K / 32 - begin < ROUND ? K / 32 - begin : ROUND);
    BARRIER(); /* the room may still be read */
    for (i32 i = slice; i < n; i += SLICES) {
      quant_block block;
      quant_load(f, w, K, begin + i, lane, &block);
      for (i32 part = 0; part < parts; part++) {
        const quant_sum s = quant_part(f, &block, x, begin + i, part);
        LOCAL f32 *to = room + (i * parts + part) * floats * LANES + lane;
        to[0] = s.scale;
        to[LANES] = s.whole;
        if (!f.minimum) continue;
        to[2 * LANES] = s.minimum;
        to[3 * LANES] = s.shift;
      }
    }
    BARRIER();
    if (slice) continue;
    for (i32 i = 0; i < n * parts; i++) {
      LOCAL const f32 *from = room + i * floats * LANES + lane;
      quant_sum s;
      s.scale = from[0];
      s.whole = from[LANES];
      s.minimum = f.minimum ? from[2 * LANES] : 0.0f;
      s.shift = f.minimum ? from[3 * LANES] : 0.0f;
      acc = quant_add(f, s, acc);
    }
  }
  return acc;
}

/* MANY rows of x from `row` against one lane of the group of weights at `w`; rows from `rows` on are the last one. */
DEV void quant_many(quant_form f, GLOBAL const u8 *w, GLOBAL u8 *scratch, i64 row, i64 rows, i64 K, f32 *acc) {
  xq_row x[MANY];
  for (i32 j = 0; j < MANY; j++) {
    x[j] = xq_at(scratch, K, row + j < rows ? row + j : rows - 1);
    acc[j] = 0;
  }
  for (i64 b = 0; b < K / 32; b++) {
    quant_block block;
    quant_load(f, w, K, b, item() % LANES, &block);
    for (i32 part = 0; part < 32 / f.part; part++)
      for (i32 j = 0; j < MANY; j++) acc[j] = quant_add(f, quant_part(f, &block, x[j], b, part), acc[j]);
  }
}

/* x, w, bias, res, norm, up, y; n: act */
#define FINISH(r, k, product, beside) \
  do { \
    f32 value = product; \
    if (HAS(5)) value = act_value(c->n[0], value) * (beside); \
    if (HAS(2)) value += ARG(const f32, 2)[k]; \
    if (HAS(3)) value += ROW(const f32, 3, r)[k]; \
    ROW(f32, 6, r)[k] = value; \
  } while (0)

/* n: act, bytes of a block */
#define PLAIN(name, R, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  KERNEL(matmul_plain_##R##_##name, ITEMS, 7) { \
    const quant_form f = {bits, bias, part, minimum, scale_bits, scale_bias, table}; \
    const i64 k = (i64)group(0) * ITEMS + item(), row = (i64)group(1) * R, rows = LIVE(0), K = INNER(0), in = scale_bits ? 8 : 1; \
    if (row >= rows || k >= EXT(1, 0)) return; \
    xq_row x[R]; \
    f32 sum[R]; \
    for (i32 j = 0; j < R; j++) { \
      x[j] = xq_at(SCRATCH(u8), K, row + j < rows ? row + j : rows - 1); \
      sum[j] = 0; \
    } \
    for (i64 b = 0; b < K / 32; b += in) { \
      wr_block whole; \
      wr_unpack_##name(ROW(const u8, 1, k) + b / in * c->n[1], &whole); \
      for (i32 i = 0; i < in; i++) { \
        quant_block block; \
        quant_take(f, &whole, i, &block); \
        for (i32 at = 0; at < 32 / part; at++) \
          for (i32 j = 0; j < R; j++) sum[j] = quant_add(f, quant_part(f, &block, x[j], b + i, at), sum[j]); \
      } \
    } \
    for (i32 j = 0; j < R && row + j < rows; j++) FINISH(row + j, k, sum[j], 0.0f); \
  }

#define QUANT(name, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  KERNEL(matmul_few_##name, ITEMS, 7) { \
    SHARED f32 room[ROUND * LANES * SUM_FLOATS(part, minimum)]; \
    const quant_form f = {bits, bias, part, minimum, scale_bits, scale_bias, table}; \
    const i64 r = group(1), k = (i64)group(0) * LANES + item(), K = INNER(0); \
    if (r >= LIVE(0)) return; \
    const xq_row x = xq_at(SCRATCH(u8), K, r); \
    const f32 sum = quant_few(f, ROW(const u8, 1, group(0)), x, K, room); \
    const f32 beside = HAS(5) ? quant_few(f, ROW(const u8, 5, group(0)), x, K, room) : 0.0f; \
    if (item() < LANES && k < EXT(1, 0)) FINISH(r, k, sum, beside); \
  } \
  KERNEL(matmul_many_##name, ITEMS, 7) { \
    const quant_form f = {bits, bias, part, minimum, scale_bits, scale_bias, table}; \
    const i64 k = (i64)group(0) * ITEMS + item(), row = (i64)group(1) * MANY, rows = LIVE(0), K = INNER(0); \
    f32 sum[MANY], beside[MANY]; \
    if (row >= rows || k >= EXT(1, 0)) return; \
    quant_many(f, ROW(const u8, 1, k / LANES), SCRATCH(u8), row, rows, K, sum); \
    if (HAS(5)) quant_many(f, ROW(const u8, 5, k / LANES), SCRATCH(u8), row, rows, K, beside); \
    for (i32 j = 0; j < MANY && row + j < rows; j++) FINISH(row + j, k, sum[j], beside[j]); \
  } \
  PLAIN(name, 1, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  PLAIN(name, 8, bits, bias, part, minimum, scale_bits, scale_bias, table)
#include "core/quant.def"
#undef QUANT

/* ---- float weights: x, w, bias, res, norm, up, y; n: elements from one k to the next, packed or plain */

/* R rows from `row`; room[R * ITEMS] */
#define FLOATS(name, R) \
  KERNEL(matmul_##R##_##name, ITEMS, 7) { \
    SHARED f32 room[R * ITEMS]; \
    const i64 k = (i64)group(0) * LANES + item() % LANES, row = (i64)group(1) * R, rows = LIVE(0), K = INNER(0), step = c->n[0]; \
    const i64 last = EXT(1, 0) - 1, at = step == 1 ? (k < last ? k : last) : group(0); /* a row, or a group of sixteen */ \
    if (row >= rows) return; \
    GLOBAL const u8 *w = ROW(const u8, 1, at) + (step == 1 ? 0 : item() % LANES * float_bytes(DT_##name)); \
    GLOBAL const f32 *x[R]; \
    f32 acc[R]; \
    for (i32 j = 0; j < R; j++) { \
      x[j] = ROW(const f32, 0, row + j < rows ? row + j : rows - 1); \
      acc[j] = 0; \
    } \
    for (i64 i0 = 0, i = item() / LANES; i0 < K; i0 += SLICES, i += SLICES) { /* see EACH */ \
      const f32 weight = i < K ? float_at(DT_##name, w, i * step) : 0.0f; \
      for (i32 j = 0; j < R && i < K; j++) acc[j] = f32_fma(weight, x[j][i], acc[j]); \
    } \
    for (i32 j = 0; j < R; j++) room[j * ITEMS + item()] = acc[j]; \
    BARRIER(); \
    if (item() >= LANES || k > last) return; \
    for (i32 j = 0; j < R && row + j < rows; j++) { \
      LOCAL const f32 *from = room + j * ITEMS + item(); \
      FINISH(row + j, k, (from[0] + from[LANES]) + (from[2 * LANES] + from[3 * LANES]), 0.0f); \
    } \
  }
FLOATS(F32, 1)
FLOATS(F16, 1)
FLOATS(BF16, 1)
FLOATS(F32, 8)
FLOATS(F16, 8)
FLOATS(BF16, 8)

#if WR_DEV_HOST
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_i.h"

wr_launch_fn matmul_quant_dev, matmul_plain_dev, matmul_float_dev;

static const struct {
  const wr_dev_kernel *few, *many, *plain_1, *plain_8; /* of quantised types the plain ones are apart */
} kernels[WR_DTYPE_COUNT] = {
#define QUANT(name, ...) [WR_##name] = {&matmul_few_##name, &matmul_many_##name, &matmul_plain_1_##name, &matmul_plain_8_##name},
#include "core/quant.def"
#undef QUANT
    [WR_F32] = {&matmul_1_F32, &matmul_8_F32, NULL, NULL},
    [WR_F16] = {&matmul_1_F16, &matmul_8_F16, NULL, NULL},
    [WR_BF16] = {&matmul_1_BF16, &matmul_8_BF16, NULL, NULL},
};

static int64_t parts(int64_t n, int64_t of) { return (n + of - 1) / of; }

void matmul_quant_dev(const wr_call *c, wr_launch *out) {
  const wr_matmul_params *p = c->params;
  const int64_t rows = c->args[WR_MM_X].ext[0], N = c->args[WR_MM_W].ext[0];
  const int t = c->args[WR_MM_W].dtype;
  out->n[0] = p->act;
  out->n[1] = wr_dtypes[t].block_bytes;
  out->f[0] = p->eps;
  wr_launch_add(out, &matmul_quantise_x, rows, 1, 1);
  if (c->args[WR_MM_W].layout == WR_PLAIN)
    wr_launch_add(out, rows <= FEW ? kernels[t].plain_1 : kernels[t].plain_8, parts(N, ITEMS), rows <= FEW ? rows : parts(rows, MANY), 1);
  else if (rows <= FEW)
    wr_launch_add(out, kernels[t].few, parts(N, LANES), rows, 1);
  else
    wr_launch_add(out, kernels[t].many, parts(N, ITEMS), parts(rows, MANY), 1);
}

void matmul_plain_dev(const wr_call *c, wr_launch *out) { matmul_quant_dev(c, out); }

void matmul_float_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *w = &c->args[WR_MM_W];
  const int64_t rows = c->args[WR_MM_X].ext[0];
  out->n[0] = w->layout == WR_PACK16 ? WR_PACK_ROWS : 1;
  if (rows <= FEW)
    wr_launch_add(out, kernels[w->dtype].few, parts(w->ext[0], LANES), rows, 1);
  else
    wr_launch_add(out, kernels[w->dtype].many, parts(w->ext[0], LANES), parts(rows, MANY), 1);
}
#endif

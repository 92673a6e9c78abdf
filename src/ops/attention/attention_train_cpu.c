/* Attention over whole sequences and its gradient on the CPU, FP32, compiled once for each instruction set; the same bits
 * from each.
 *
 * No T x T anywhere: keys are taken in tiles of 32 positions at absolute places, turned so that positions are lanes, and
 * scores are computed again in the gradient. A unit of work is, for y and dq: a sequence, a key head and BLOCK rows, over all
 * tiles they attend to; for dk and dv: a sequence, a key head and a tile, over all rows that attend to it. In either a sum
 * runs in one fixed order (tiles ascending; or rows ascending, heads within a row), so results depend on neither threads nor
 * batch.
 */
#include <math.h>

#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_i.h"
#include "ops/attention/attention_page_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(attention_f32_cpu));
WR_ROW_FN(WR_KERNEL(attention_bwd_f32_cpu));

enum { P = WR_KV_PAGE, BLOCK = WR_ATTN_BLOCK, TOGETHER = 4 };

/* 32 rows of n elements, turned: to[d][place]. Places past `rows` become zero. */
static void turn(const wr_arg *a, int64_t row, int rows, int64_t col, int64_t n, float *to) {
  for (int i = 0; i < P; i++) {
    const float *from = i < rows ? wr_arg_f32(a, row + i) + col : NULL;
    for (int64_t d = 0; d < n; d++) to[d * P + i] = from ? from[d] : 0;
  }
}

static int tile_rows(const wr_attention_params *p, int64_t at) { return p->T - at < P ? (int)(p->T - at) : P; }

/* The first position that any row of a block attends to. */
static int64_t first_of_block(const wr_attention_params *p, const wr_arg *first, int64_t b0, int64_t t0, int64_t t1) {
  int64_t least = wr_attn_first(p, first, b0, t0);
  for (int64_t t = t0 + 1; t < t1 && least > 0; t++) least = WR_MIN(least, wr_attn_first(p, first, b0, t));
  return least;
}
static int64_t past_of(const wr_attention_params *p, int64_t t) { return p->bidirectional ? p->T : t + 1; }

/* ---------------------------------------------------------------------------------------------------------------- forward */

typedef struct unit {
  int64_t b0, kv, t0, t1;
} unit; /* first row of the sequence; key head; rows of the block */

static unit unit_of(const wr_attention_params *p, int64_t Nkv, int64_t u) {
  int64_t blocks = (p->T + BLOCK - 1) / BLOCK, block = u % blocks, t1 = (block + 1) * BLOCK;
  return (unit){u / blocks / Nkv * p->T, u / blocks % Nkv, block * BLOCK, WR_MIN(t1, p->T)};
}

static void attend_tile(const target *t, const float *k, const float *v, int64_t at, sums *out, int g) {
  switch (g) {
  case 1: attend_page(t, k, v, at, out, 1, false); break;
  case 2: attend_page(t, k, v, at, out, 2, false); break;
  case 3: attend_page(t, k, v, at, out, 3, false); break;
  default: attend_page(t, k, v, at, out, TOGETHER, false); break;
  }
}

/* The query heads [h, h + g) of one block. */
static void forward_block(const wr_call *c, const unit *u, int64_t h, int g, float *turned, float (*max)[TOGETHER],
                          float (*total)[TOGETHER]) {
  const wr_arg *q = &c->args[ATTN_Q], *k = &c->args[ATTN_K], *v = &c->args[ATTN_V], *y = &c->args[ATTN_Y],
               *lse = &c->args[ATTN_LSE];
  const wr_attention_params *p = c->params;
  int64_t Dqk = q->ext[2], Dv = v->ext[2];
  for (int64_t t = u->t0; t < u->t1; t++) {
    memset(wr_arg_f32(y, u->b0 + t) + h * Dv, 0, (size_t)(g * Dv) * sizeof(float));
    for (int i = 0; i < g; i++) max[t - u->t0][i] = -INFINITY, total[t - u->t0][i] = 0;
  }
  const wr_arg *first = &c->args[ATTN_FIRST];
  int64_t end = past_of(p, u->t1 - 1);
  for (int64_t at = first_of_block(p, first, u->b0, u->t0, u->t1) / P * P; at < end; at += P) {
    turn(k, u->b0 + at, tile_rows(p, at), u->kv * Dqk, Dqk, turned);
    const float *values = wr_arg_f32(v, u->b0 + at) + u->kv * Dv;
    for (int64_t t = u->t0; t < u->t1; t++) {
      target one = {.q = wr_arg_f32(q, u->b0 + t) + h * Dqk,
                    .kv_head = u->kv,
                    .first = wr_attn_first(p, first, u->b0, t),
                    .past = past_of(p, t),
                    .Dqk = Dqk,
                    .Dv = Dv,
                    .v_stride = v->stride_bytes / (int64_t)sizeof(float),
                    .scale = p->scale};
      sums out = {wr_arg_f32(y, u->b0 + t) + h * Dv, max[t - u->t0], total[t - u->t0]};
      if (one.past > at && one.first < at + P) attend_tile(&one, turned, values, at, &out, g);
    }
  }
  for (int64_t t = u->t0; t < u->t1; t++)
    for (int i = 0; i < g; i++) {
      float *row = wr_arg_f32(y, u->b0 + t) + (h + i) * Dv, sum = total[t - u->t0][i];
      for (int64_t d = 0; d < Dv; d += WR_LANES) {
        int n = part(Dv - d);
        v16_store_n(row + d, v16_div(v16_load_n(row + d, n), v16_set1(sum)), n);
      }
      if (lse->data) wr_arg_f32(lse, u->b0 + t)[h + i] = max[t - u->t0][i] + (float)log((double)sum);
    }
}

WR_ROW_FN(WR_KERNEL(attention_f32_cpu)) {
  wr_call view;
  c = wr_attn_apart(c, &view);
  const wr_attention_params *p = c->params;
  int64_t Nkv = c->args[ATTN_K].ext[1], group = c->args[ATTN_Q].ext[1] / Nkv, Dqk = c->args[ATTN_Q].ext[2], begin, end;
  float *turned = (float *)c->scratch + w->tid * Dqk * P, max[BLOCK][TOGETHER], total[BLOCK][TOGETHER];
  while (wr_take(w, 0, p->B * Nkv * ((p->T + BLOCK - 1) / BLOCK), 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) {
      unit u = unit_of(p, Nkv, i);
      for (int64_t h = u.kv * group; h < (u.kv + 1) * group; h += TOGETHER)
        forward_block(c, &u, h, (int)WR_MIN((u.kv + 1) * group - h, (int64_t)TOGETHER), turned, max, total);
    }
}

/* --------------------------------------------------------------------------------------------------------------- backward */

/* One row and query head in a tile. */
typedef struct query {
  const float *q, *dy;
  float lse, own;
  int64_t first, past;
} query; /* own: dy . y */

static float dot(const float *a, const float *b, int64_t n) {
  v16 s = v16_zero();
  for (int64_t d = 0; d < n; d += WR_LANES) s = v16_fma(v16_load_n(a + d, part(n - d)), v16_load_n(b + d, part(n - d)), s);
  return v16_sum(s);
}

static query query_of(const wr_call *c, int64_t b0, int64_t t, int64_t h) {
  const wr_attention_params *p = c->params;
  int64_t Dqk = c->args[ATTN_BWD_Q].ext[2], Dv = c->args[ATTN_BWD_V].ext[2];
  const float *dy = wr_arg_f32(&c->args[ATTN_BWD_DY], b0 + t) + h * Dv;
  return (query){.q = wr_arg_f32(&c->args[ATTN_BWD_Q], b0 + t) + h * Dqk,
                 .dy = dy,
                 .lse = wr_arg_f32(&c->args[ATTN_BWD_LSE], b0 + t)[h],
                 .own = dot(dy, wr_arg_f32(&c->args[ATTN_BWD_Y], b0 + t) + h * Dv, Dv),
                 .first = wr_attn_first(p, &c->args[ATTN_BWD_FIRST], b0, t),
                 .past = past_of(p, t)};
}

/* Products of G rows with 32 turned ones. */
WR_INLINE void products(const float *const *x, const float *turned, int64_t n, v16 (*out)[2], const int G) {
  for (int g = 0; g < G; g++) out[g][0] = out[g][1] = v16_zero();
  for (int64_t d = 0; d < n; d++) {
    v16 k0 = v16_load(turned + d * P), k1 = v16_load(turned + d * P + WR_LANES);
    for (int g = 0; g < G; g++) {
      v16 s = v16_set1(x[g][d]);
      out[g][0] = v16_fma(s, k0, out[g][0]);
      out[g][1] = v16_fma(s, k1, out[g][1]);
    }
  }
}

/* p and ds of G queries with the tile at `at`. */
WR_INLINE void pairs(const query *x, const float *k, const float *v, int64_t Dqk, int64_t Dv, float scale, int64_t at,
                     v16 (*p)[2], v16 (*ds)[2], const int G) {
  const float *q[TOGETHER], *dy[TOGETHER];
  for (int g = 0; g < G; g++) q[g] = x[g].q, dy[g] = x[g].dy;
  products(q, k, Dqk, p, G);
  products(dy, v, Dv, ds, G);
  for (int g = 0; g < G; g++)
    for (int i = 0; i < 2; i++) {
      v16 s = only_allowed(v16_mul(p[g][i], v16_set1(scale)), at + i * WR_LANES, x[g].first, x[g].past);
      p[g][i] = v16_exp(v16_sub(s, v16_set1(x[g].lse)));
      ds[g][i] = v16_mul(p[g][i], v16_sub(ds[g][i], v16_set1(x[g].own)));
    }
}

/* to[d][place] += sum over queries of x_d weight[place], in their order. */
WR_INLINE void add_outer(float *to, const float *const *x, v16 (*weight)[2], int64_t n, const int G) {
  for (int64_t d = 0; d < n; d++) {
    v16 a = v16_load(to + d * P), b = v16_load(to + d * P + WR_LANES);
    for (int g = 0; g < G; g++) {
      v16 s = v16_set1(x[g][d]);
      a = v16_fma(s, weight[g][0], a);
      b = v16_fma(s, weight[g][1], b);
    }
    v16_store(to + d * P, a);
    v16_store(to + d * P + WR_LANES, b);
  }
}

/* dk and dv of a tile take G queries in. */
WR_INLINE void add_queries(const query *x, const float *k, const float *v, float *dk, float *dv, int64_t Dqk, int64_t Dv,
                           float scale, int64_t at, const int G) {
  v16 p[TOGETHER][2], ds[TOGETHER][2];
  const float *q[TOGETHER], *dy[TOGETHER];
  for (int g = 0; g < G; g++) q[g] = x[g].q, dy[g] = x[g].dy;
  pairs(x, k, v, Dqk, Dv, scale, at, p, ds, G);
  add_outer(dk, q, ds, Dqk, G);
  add_outer(dv, dy, p, Dv, G);
}

/* Rows of a turned tile, times scale, into dk or dv. */
static void put_back(const wr_call *c, int arg, const float *turned, int64_t row, int rows, int64_t col, int64_t n,
                     float scale) {
  const wr_arg *a = &c->args[arg];
  if (!a->data) return;
  for (int i = 0; i < rows; i++) {
    float *to = wr_arg_f32(a, row + i) + col;
    for (int64_t d = 0; d < n; d++) to[d] = (c->acc >> arg & 1 ? to[d] : 0) + turned[d * P + i] * scale;
  }
}

typedef struct tiles {
  float *k, *v, *dk, *dv;
} tiles; /* [Dqk or Dv][32] each */

static void backward_tile(const wr_call *c, int64_t b0, int64_t kv, int64_t at, const tiles *s) {
  const wr_attention_params *p = c->params;
  int64_t Dqk = c->args[ATTN_BWD_Q].ext[2], Dv = c->args[ATTN_BWD_V].ext[2],
          group = c->args[ATTN_BWD_Q].ext[1] / c->args[ATTN_BWD_K].ext[1];
  const wr_arg *first = &c->args[ATTN_BWD_FIRST];
  int rows = tile_rows(p, at), n = 0;
  int64_t t = p->bidirectional ? 0 : at, past = p->window && !p->bidirectional ? WR_MIN(at + P - 1 + p->window, p->T) : p->T;
  query x[TOGETHER];
  turn(&c->args[ATTN_BWD_K], b0 + at, rows, kv * Dqk, Dqk, s->k);
  turn(&c->args[ATTN_BWD_V], b0 + at, rows, kv * Dv, Dv, s->v);
  memset(s->dk, 0, (size_t)(Dqk * P) * sizeof(float));
  memset(s->dv, 0, (size_t)(Dv * P) * sizeof(float));
  for (; t < past; t++)
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
      if (wr_attn_first(p, first, b0, t) >= at + P) break; /* a later document */
      x[n++] = query_of(c, b0, t, h);
      if (n < TOGETHER) continue;
      add_queries(x, s->k, s->v, s->dk, s->dv, Dqk, Dv, p->scale, at, TOGETHER);
      n = 0;
    }
  for (int i = 0; i < n; i++) add_queries(x + i, s->k, s->v, s->dk, s->dv, Dqk, Dv, p->scale, at, 1);
  put_back(c, ATTN_BWD_DK, s->dk, b0 + at, rows, kv * Dqk, Dqk, p->scale);
  put_back(c, ATTN_BWD_DV, s->dv, b0 + at, rows, kv * Dv, Dv, 1);
}

/* dq of one query takes a tile in: lanes are d, ascending over positions. */
static void add_keys(float *dq, const wr_arg *k, int64_t row, int64_t col, int64_t Dqk, const float *weight, int lo, int hi) {
  for (int64_t d = 0; d < Dqk; d += WR_LANES) {
    int n = part(Dqk - d);
    v16 a = v16_load_n(dq + d, n);
    for (int i = lo; i < hi; i++) a = v16_fma(v16_set1(weight[i]), v16_load_n(wr_arg_f32(k, row + i) + col + d, n), a);
    v16_store_n(dq + d, a, n);
  }
}

/* dq of G queries takes a tile in. */
WR_INLINE void add_tile(const wr_call *c, const query *x, float *const *dq, const tiles *s, int64_t b0, int64_t kv, int64_t at,
                        const int G) {
  const wr_arg *k = &c->args[ATTN_BWD_K];
  const wr_attention_params *p = c->params;
  int64_t Dqk = c->args[ATTN_BWD_Q].ext[2], Dv = c->args[ATTN_BWD_V].ext[2];
  v16 prob[TOGETHER][2], ds[TOGETHER][2];
  pairs(x, s->k, s->v, Dqk, Dv, p->scale, at, prob, ds, G);
  for (int g = 0; g < G; g++) {
    float weight[P];
    v16_store(weight, ds[g][0]);
    v16_store(weight + WR_LANES, ds[g][1]);
    int lo = x[g].first > at ? (int)(x[g].first - at) : 0, hi = x[g].past - at < P ? (int)(x[g].past - at) : P;
    if (lo < hi) add_keys(dq[g], k, b0 + at, kv * Dqk, Dqk, weight, lo, hi);
  }
}

/* dq of a block; sums are kept in `sum`, [BLOCK * group][Dqk], since dq itself may be added to. */
static void backward_block(const wr_call *c, const unit *u, int64_t group, const tiles *s, float *sum) {
  const wr_arg *q = &c->args[ATTN_BWD_Q], *dq = &c->args[ATTN_BWD_DQ];
  const wr_attention_params *p = c->params;
  int64_t Dqk = q->ext[2], Dv = c->args[ATTN_BWD_V].ext[2], queries = (u->t1 - u->t0) * group, end = past_of(p, u->t1 - 1);
  memset(sum, 0, (size_t)(queries * Dqk) * sizeof *sum);
  for (int64_t at = first_of_block(p, &c->args[ATTN_BWD_FIRST], u->b0, u->t0, u->t1) / P * P; at < end; at += P) {
    turn(&c->args[ATTN_BWD_K], u->b0 + at, tile_rows(p, at), u->kv * Dqk, Dqk, s->k);
    turn(&c->args[ATTN_BWD_V], u->b0 + at, tile_rows(p, at), u->kv * Dv, Dv, s->v);
    for (int64_t i = 0; i < queries; i += TOGETHER) {
      query x[TOGETHER];
      float *to[TOGETHER];
      int n = (int)WR_MIN(queries - i, (int64_t)TOGETHER);
      for (int g = 0; g < n; g++) {
        x[g] = query_of(c, u->b0, u->t0 + (i + g) / group, u->kv * group + (i + g) % group);
        to[g] = sum + (i + g) * Dqk;
      }
      if (n == TOGETHER)
        add_tile(c, x, to, s, u->b0, u->kv, at, TOGETHER);
      else
        for (int g = 0; g < n; g++) add_tile(c, x + g, to + g, s, u->b0, u->kv, at, 1);
    }
  }
  for (int64_t i = 0; i < queries; i++) {
    float *to = wr_arg_f32(dq, u->b0 + u->t0 + i / group) + (u->kv * group + i % group) * Dqk;
    for (int64_t d = 0; d < Dqk; d++) to[d] = (c->acc >> ATTN_BWD_DQ & 1 ? to[d] : 0) + sum[i * Dqk + d] * p->scale;
  }
}

WR_ROW_FN(WR_KERNEL(attention_bwd_f32_cpu)) {
  wr_call view;
  c = wr_attn_bwd_apart(c, &view);
  const wr_attention_params *p = c->params;
  int64_t Nkv = c->args[ATTN_BWD_K].ext[1], group = c->args[ATTN_BWD_Q].ext[1] / Nkv, Dqk = c->args[ATTN_BWD_Q].ext[2];
  int64_t Dv = c->args[ATTN_BWD_V].ext[2], n_tiles = (p->T + P - 1) / P, begin, end;
  float *mine = (float *)c->scratch + w->tid * (int64_t)(wr_attn_bwd_scratch(Dqk, Dv, group) / sizeof(float));
  tiles s = {mine, mine + Dqk * P, mine + (Dqk + Dv) * P, mine + (2 * Dqk + Dv) * P};
  if (c->args[ATTN_BWD_DQ].data)
    while (wr_take(w, 0, p->B * Nkv * ((p->T + BLOCK - 1) / BLOCK), 1, &begin, &end))
      for (int64_t i = begin; i < end; i++) {
        unit u = unit_of(p, Nkv, i);
        backward_block(c, &u, group, &s, mine + 2 * (Dqk + Dv) * P);
      }
  if (!c->args[ATTN_BWD_DK].data && !c->args[ATTN_BWD_DV].data) return;
  while (wr_take(w, 1, p->B * Nkv * n_tiles, 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) backward_tile(c, i / n_tiles / Nkv * p->T, i / n_tiles % Nkv, i % n_tiles * P, &s);
}

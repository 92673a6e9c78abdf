/* Attention over whole sequences and its gradient on the CPU, FP32, compiled once for each instruction set; the same bits
 * from each.
 *
 * No T x T anywhere: keys are taken in blocks of KEYS at absolute places, rows in blocks too, and all products are those of
 * ops/gemm_i.h. A unit of work is, forward, a sequence, a key head and ROWS rows; backward, a sequence and a key head.
 *   forward   scores = q k^T, with k turned into panels; softmax carried on from block to block; y += p v
 *   backward  scores again and dp = dy v^T; p = e^(s - lse), ds = p (dp - dy . y) scale; dq += ds k, dk += ds^T q, dv += p^T dy
 * Rows go in strips of STRIP, each against the panels that any of its rows attends to; what a row does not attend to is zero in p
 * and ds. Sums run in one fixed order (dq: keys ascending; dk, dv: heads, rows ascending), so results depend on neither threads nor
 * batch.
 */
#include <math.h>

#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_i.h"
#include "ops/attention/attention_line_i.h"
#include "ops/gemm_i.h"

WR_ROW_FN(WR_KERNEL(attention_f32_cpu));
WR_ROW_FN(WR_KERNEL(attention_bwd_f32_cpu));

enum { KEYS = WR_ATTN_KEYS, ROWS = WR_ATTN_ROWS, STRIP = WR_ATTN_STRIP, LINE = WR_ATTN_LINE };

/* -------------------------------------------------------------------------------------------------------------------- panels */

/* Sixteen columns each of some rows of an argument: where a panel's rows begin, and the steps between rows and panels. */
typedef struct panels {
  const float *at;
  int64_t step, panel;
} panels;

static int64_t step_of(const wr_arg *a) { return a->stride_bytes / (int64_t)sizeof(float); }
static int64_t whole(int64_t n) { return (n + 15) / 16 * 16; }

/* Columns [col, col + n) of `rows` rows as they lie; the last panel in `room`, with zeros, where it is not a whole one. */
static panels plain_panels(const wr_arg *a, int64_t row, int64_t rows, int64_t col, int64_t n, float *room) {
  if (n % 16 == 0) return (panels){wr_arg_f32(a, row) + col, step_of(a), 16};
  for (int64_t p = 0; p < n; p += 16)
    for (int64_t i = 0; i < rows; i++)
      v16_store(room + (p * rows + i * 16), v16_load_n(wr_arg_f32(a, row + i) + col + p, wr_lanes(n - p)));
  return (panels){room, 16, rows * 16};
}

/* Rows become lanes: to[rows / 16][d][16]; lanes past the last row are zero. */
static panels turned_panels(const wr_arg *a, int64_t row, int64_t rows, int64_t col, int64_t n, float *to) {
  for (int64_t r = 0; r < rows; r += 16)
    for (int64_t d = 0; d < n; d += 16) {
      float *out = to + r * n + d * 16;
      const float *from = wr_arg_f32(a, row + r) + col + d;
      if (rows - r >= 16 && n - d >= 16) {
        wr_turn16(from, step_of(a), out, 16);
        continue;
      }
      float padded[256] = {0}, square[256];
      for (int64_t i = 0; i < WR_MIN(rows - r, (int64_t)16); i++)
        v16_store(padded + 16 * i, v16_load_n(from + i * step_of(a), wr_lanes(n - d)));
      wr_turn16(padded, 16, square, 16);
      memcpy(out, square, (size_t)WR_MIN(n - d, (int64_t)16) * 64);
    }
  return (panels){to, 16, n * 16};
}

/* A factor as it lies: one of the steps, from a row of the result to the next and from a summand to the next, is 1. */
typedef struct factor {
  const float *at;
  int64_t row, step;
} factor;

/* to[r][lane] (+)= sum over n of a[r] b. */
static void multiply(factor a, int64_t rows, panels b, int64_t n, float *to, int64_t to_row, int64_t columns, bool add) {
  const int64_t count = (columns + 15) / 16;
  const wr_gemm g = {.a = a.at,
                     .a_row = a.row,
                     .a_step = a.step,
                     .b = b.at,
                     .b_step = b.step,
                     .b_panel = b.panel,
                     .n = n,
                     .from = add ? to : NULL,
                     .from_row = to_row,
                     .from_panel = 16,
                     .to = to,
                     .to_row = to_row,
                     .to_panel = 16,
                     .lanes = (int)(columns - 16 * (count - 1))};
  wr_gemm_block(&g, rows, count);
}

/* --------------------------------------------------------------------------------------------------------------------- strips */

/* Rows [t0, t1) of a sequence and the keys [lo, hi) of the block at k0 that any of them attends to; lo and hi are whole panels, counted
 * from k0. least: the first position that any of the rows attends to. */
typedef struct strip {
  int64_t t0, t1, least, k0, lo, hi;
} strip;

static int64_t past_of(const wr_attention_params *p, int64_t t) { return p->bidirectional ? p->T : t + 1; }

static strip strip_of(const wr_attention_params *p, const wr_arg *first, int64_t b0, int64_t t0, int64_t k0) {
  strip s = {.t0 = t0, .t1 = WR_MIN(t0 + STRIP, p->T), .k0 = k0};
  s.least = wr_attn_first(p, first, b0, t0);
  for (int64_t t = t0 + 1; t < s.t1 && s.least > 0; t++) s.least = WR_MIN(s.least, wr_attn_first(p, first, b0, t));
  s.lo = WR_MAX(s.least - k0, (int64_t)0) / 16 * 16;
  s.hi = whole(WR_MIN(past_of(p, s.t1 - 1) - k0, (int64_t)KEYS));
  return s;
}

/* Keys of the strip that are there. */
static int64_t keys_of(const wr_attention_params *p, const strip *s) { return WR_MIN(s->hi, p->T - s->k0) - s->lo; }

static void zero(float *rows, int64_t n, int64_t columns) {
  for (int64_t r = 0; r < n; r++) memset(rows + r * LINE, 0, (size_t)columns * sizeof *rows);
}

/* -------------------------------------------------------------------------------------------------------------------- forward */

/* The scores of row t against the strip's keys. */
static float soften_strip(const wr_attention_params *p, const strip *s, int64_t first, int64_t t, float *score, float *max,
                          float *total) {
  const int64_t past = past_of(p, t);
  float keep = 1;
  if (past > s->k0 + s->lo && first < s->k0 + s->hi)
    soften[0](p, score, LINE, s->lo, s->hi, s->k0, &first, &past, max, total, &keep);
  else
    memset(score + s->lo, 0, (size_t)(s->hi - s->lo) * sizeof *score);
  return keep;
}

static void forward_strip(const wr_call *c, int64_t b0, int64_t h, const strip *s, panels k, panels v, float *scores,
                          float *max, float *total) {
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[ATTN_Q], *y = &c->args[ATTN_Y];
  const int64_t Dqk = q->ext[2], Dv = y->ext[2], rows = s->t1 - s->t0;
  const bool begins = s->least >= s->k0;
  k.at += s->lo / 16 * k.panel;
  v.at += s->lo * v.step;
  multiply((factor){wr_arg_f32(q, b0 + s->t0) + h * Dqk, step_of(q), 1}, rows, k, Dqk, scores + s->lo, LINE, s->hi - s->lo,
           false);
  for (int64_t t = s->t0, r = 0; t < s->t1; t++, r++) {
    if (begins) max[r] = -INFINITY, total[r] = 0;
    const float keep =
        soften_strip(p, s, wr_attn_first(p, &c->args[ATTN_FIRST], b0, t), t, scores + r * LINE, &max[r], &total[r]);
    float *row = wr_arg_f32(y, b0 + t) + h * Dv;
    for (int64_t d = 0; d < Dv && !begins && keep != 1; d += 16)
      v16_store_n(row + d, v16_mul(v16_load_n(row + d, wr_lanes(Dv - d)), v16_set1(keep)), wr_lanes(Dv - d));
  }
  multiply((factor){scores + s->lo, LINE, 1}, rows, v, keys_of(p, s), wr_arg_f32(y, b0 + s->t0) + h * Dv, step_of(y), Dv,
           !begins);
}

static void finish(const wr_call *c, int64_t row, int64_t h, float max, float total) {
  const wr_arg *lse = &c->args[ATTN_LSE];
  const int64_t Dv = c->args[ATTN_Y].ext[2];
  float *y = wr_arg_f32(&c->args[ATTN_Y], row) + h * Dv;
  for (int64_t d = 0; d < Dv; d += 16)
    v16_store_n(y + d, v16_div(v16_load_n(y + d, wr_lanes(Dv - d)), v16_set1(total)), wr_lanes(Dv - d));
  if (lse->data) wr_arg_f32(lse, row)[h] = max + (float)log((double)total);
}

WR_ROW_FN(WR_KERNEL(attention_f32_cpu)) {
  wr_call view;
  c = wr_attn_apart(c, &view);
  const wr_attention_params *p = c->params;
  const wr_arg *k = &c->args[ATTN_K], *v = &c->args[ATTN_V], *first = &c->args[ATTN_FIRST];
  const int64_t Nkv = k->ext[1], group = c->args[ATTN_Q].ext[1] / Nkv, Dqk = k->ext[2], Dv = v->ext[2];
  const int64_t blocks = (p->T + ROWS - 1) / ROWS;
  wr_attn_room room = wr_attn_room_of(c->scratch, w->tid, Dqk, Dv, group);
  int64_t begin, end;
  while (wr_take(w, 0, p->B * Nkv * blocks, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t b0 = u / blocks / Nkv * p->T, kv = u / blocks % Nkv, r0 = u % blocks * ROWS, r1 = WR_MIN(r0 + ROWS, p->T);
      for (int64_t k0 = 0; k0 < past_of(p, r1 - 1); k0 += KEYS) {
        const int64_t keys = WR_MIN(p->T - k0, (int64_t)KEYS);
        const panels turned = turned_panels(k, b0 + k0, keys, kv * Dqk, Dqk, room.k);
        const panels values = plain_panels(v, b0 + k0, keys, kv * Dv, Dv, room.v);
        for (int64_t h = 0; h < group; h++)
          for (int64_t t0 = r0; t0 < r1; t0 += STRIP) {
            const strip s = strip_of(p, first, b0, t0, k0);
            const int64_t at = h * ROWS + t0 - r0;
            if (s.lo < s.hi) forward_strip(c, b0, kv * group + h, &s, turned, values, room.p, room.max + at, room.total + at);
          }
      }
      for (int64_t h = 0; h < group; h++)
        for (int64_t t = r0; t < r1; t++)
          finish(c, b0 + t, kv * group + h, room.max[h * ROWS + t - r0], room.total[h * ROWS + t - r0]);
    }
}

/* ------------------------------------------------------------------------------------------------------------------- backward */

static float dot(const float *a, const float *b, int64_t n) {
  v16 s = v16_zero();
  for (int64_t d = 0; d < n; d += WR_LANES) s = v16_fma(v16_load_n(a + d, wr_lanes(n - d)), v16_load_n(b + d, wr_lanes(n - d)), s);
  return v16_sum(s);
}

/* The block of keys at k0 and what it is read as. */
typedef struct keys {
  int64_t b0, kv, k0, n;
  panels k_turned, v_turned, k;
} keys;

/* p and ds of a strip of rows of head h, into the lines at `prob` and `ds`; then its part of dq. */
static void backward_strip(const wr_call *c, const keys *b, int64_t h, const strip *s, float *prob, float *ds) {
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[ATTN_BWD_Q], *dy = &c->args[ATTN_BWD_DY], *y = &c->args[ATTN_BWD_Y], *dq = &c->args[ATTN_BWD_DQ];
  const int64_t Dqk = q->ext[2], Dv = dy->ext[2], rows = s->t1 - s->t0, row0 = b->b0 + s->t0, columns = s->hi - s->lo;
  panels kt = b->k_turned, vt = b->v_turned, k = b->k;
  kt.at += s->lo / 16 * kt.panel, vt.at += s->lo / 16 * vt.panel, k.at += s->lo * k.step;
  multiply((factor){wr_arg_f32(q, row0) + h * Dqk, step_of(q), 1}, rows, kt, Dqk, prob + s->lo, LINE, columns, false);
  multiply((factor){wr_arg_f32(dy, row0) + h * Dv, step_of(dy), 1}, rows, vt, Dv, ds + s->lo, LINE, columns, false);
  const v16 scale = v16_set1(p->scale);
  for (int64_t t = s->t0, r = 0; t < s->t1; t++, r++) {
    const int64_t first = wr_attn_first(p, &c->args[ATTN_BWD_FIRST], b->b0, t), past = past_of(p, t);
    const v16 lse = v16_set1(wr_arg_f32(&c->args[ATTN_BWD_LSE], row0 + r)[h]);
    const v16 own = v16_set1(dot(wr_arg_f32(dy, row0 + r) + h * Dv, wr_arg_f32(y, row0 + r) + h * Dv, Dv));
    for (int64_t i = r * LINE + s->lo, at = s->k0 + s->lo; i < r * LINE + s->hi; i += 16, at += 16) {
      const v16 score = capped(v16_mul(v16_load(prob + i), scale), p->softcap);
      const v16 e = v16_exp(v16_sub(only_allowed(score, at, first, past), lse));
      v16 slope = scale; /* of the score, by the product */
      if (p->softcap != 0) {
        const v16 part_of = v16_mul(score, v16_set1(1 / p->softcap));
        slope = v16_mul(scale, v16_fma(v16_neg(part_of), part_of, v16_set1(1)));
      }
      v16_store(prob + i, e);
      v16_store(ds + i, v16_mul(v16_mul(e, v16_sub(v16_load(ds + i), own)), slope));
    }
  }
  if (!dq->data) return;
  const bool add = s->least < s->k0 || (c->acc >> ATTN_BWD_DQ & 1);
  multiply((factor){ds + s->lo, LINE, 1}, rows, k, keys_of(p, s), wr_arg_f32(dq, row0) + h * Dqk, step_of(dq), Dqk, add);
}

/* Keys [from, from + n) of the block take rows [t0, t1) in, whose lines begin with that of row t0. */
static void add_rows(const wr_call *c, int arg, const keys *b, int64_t from, int64_t n, const float *lines, panels x,
                     int64_t rows, bool add) {
  const wr_arg *to = &c->args[arg];
  if (!to->data) return;
  const int64_t D = to->ext[2];
  multiply((factor){lines + from, 1, LINE}, n, x, rows, wr_arg_f32(to, b->b0 + b->k0 + from) + b->kv * D, step_of(to), D,
           add || (c->acc >> arg & 1));
}

/* Rows [r0, r1) of head h against a block of keys. begins: nothing was added to dk and dv before, but for earlier rows. */
static void backward_rows(const wr_call *c, const keys *b, int64_t h, int64_t r0, int64_t r1, bool begins,
                          const wr_attn_room *room) {
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[ATTN_BWD_Q], *dy = &c->args[ATTN_BWD_DY];
  const int64_t Dqk = q->ext[2], Dv = dy->ext[2];
  for (int64_t t0 = r0; t0 < r1; t0 += STRIP) {
    const strip s = strip_of(p, &c->args[ATTN_BWD_FIRST], b->b0, t0, b->k0);
    float *prob = room->p + (t0 - r0) * LINE, *ds = room->ds + (t0 - r0) * LINE;
    const int64_t dead = s.lo < s.hi ? s.lo : KEYS;
    zero(prob, s.t1 - t0, dead), zero(ds, s.t1 - t0, dead);
    if (s.lo < s.hi) backward_strip(c, b, h, &s, prob, ds);
  }
  const panels qs = plain_panels(q, b->b0 + r0, r1 - r0, h * Dqk, Dqk, room->q);
  const panels dys = plain_panels(dy, b->b0 + r0, r1 - r0, h * Dv, Dv, room->dy);
  /* all keys up to the diagonal at once; past it strip by strip, each from its own first row on */
  const int64_t under = p->bidirectional ? b->n : WR_MIN(WR_MAX(r0 - b->k0, (int64_t)0), b->n);
  for (int64_t from = 0, n; from < b->n; from += n) {
    const int64_t row = from < under ? r0 : b->k0 + from;
    n = from < under ? under - from : WR_MIN(b->n - from, (int64_t)STRIP);
    if (row >= r1) break;
    panels x = qs, z = dys;
    x.at += (row - r0) * x.step, z.at += (row - r0) * z.step;
    const bool add = !begins || (p->bidirectional ? r0 > 0 : from < under);
    add_rows(c, ATTN_BWD_DK, b, from, n, room->ds + (row - r0) * LINE, x, r1 - row, add);
    add_rows(c, ATTN_BWD_DV, b, from, n, room->p + (row - r0) * LINE, z, r1 - row, add);
  }
}

WR_ROW_FN(WR_KERNEL(attention_bwd_f32_cpu)) {
  wr_call view;
  c = wr_attn_bwd_apart(c, &view);
  const wr_attention_params *p = c->params;
  const wr_arg *k = &c->args[ATTN_BWD_K], *v = &c->args[ATTN_BWD_V];
  const int64_t Nkv = k->ext[1], group = c->args[ATTN_BWD_Q].ext[1] / Nkv, Dqk = k->ext[2], Dv = v->ext[2];
  const wr_attn_room room = wr_attn_room_of(c->scratch, w->tid, Dqk, Dv, group);
  int64_t begin, end;
  while (wr_take(w, 0, p->B * Nkv, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++)
      for (int64_t k0 = 0; k0 < p->T; k0 += KEYS) {
        keys b = {.b0 = u / Nkv * p->T, .kv = u % Nkv, .k0 = k0, .n = WR_MIN(p->T - k0, (int64_t)KEYS)};
        b.k_turned = turned_panels(k, b.b0 + k0, b.n, b.kv * Dqk, Dqk, room.k);
        b.v_turned = turned_panels(v, b.b0 + k0, b.n, b.kv * Dv, Dv, room.v);
        b.k = plain_panels(k, b.b0 + k0, b.n, b.kv * Dqk, Dqk, room.k_plain);
        const int64_t past = p->window && !p->bidirectional ? WR_MIN(k0 + b.n - 1 + p->window, p->T) : p->T;
        for (int64_t h = 0; h < group; h++)
          for (int64_t r0 = p->bidirectional ? 0 : k0; r0 < past; r0 += WR_ATTN_BLOCK)
            backward_rows(c, &b, b.kv * group + h, r0, WR_MIN(r0 + WR_ATTN_BLOCK, p->T), h == 0, &room);
      }
}

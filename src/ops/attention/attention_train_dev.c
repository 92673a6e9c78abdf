/* Attention for training on other devices than the CPU: see attention.h for the equations.
 *
 * A group of 64 items has a strip of 16 lines (queries, or keys for dk and dv) of one head against blocks of 64 others at absolute places,
 * one block after another: an item makes the scores of its line of the block with the sixteen of the strip, from slices that pass through
 * SHARED memory; then it has a column of the result, and adds the block's lines weighted with the scores that all items left there. Heads
 * wider than 64 are cut into parts of so many columns, a group each, which make their scores for themselves. */
#include "device/dialect.h"

enum { STRIP = 16, BLOCK = 64, SLICE = 16, LINE = BLOCK + 1 };

/* Lines of one head, from one on. */
typedef struct strip_lines {
  GLOBAL u8 *at;
  i64 stride;
} strip_lines;
DEV strip_lines lines_of(GLOBAL u8 *at, i64 stride, i64 row, i64 column) {
  strip_lines l;
  l.at = at + row * stride + column * 4;
  l.stride = stride;
  return l;
}
DEV GLOBAL f32 *line_at(strip_lines l, i64 row) { return (GLOBAL f32 *)(l.at + row * l.stride); }
/* Of argument i, or where that is absent of `all`, in which its heads stand `before` floats later. */
#define LINES(i, all, before, row, column) \
  lines_of(HAS(i) ? ARG(u8, i) : ARG(u8, all), HAS(i) ? STRIDE(i) : STRIDE(all), row, (HAS(i) ? 0 : (before)) + (column))

/* n */
enum { N_T, N_NQ, N_NKV, N_DQK, N_DV, N_WINDOW, N_BIDIRECTIONAL, N_PARTS, N_DK_PARTS, N_DKV_PARTS };
/* f */
enum { F_SCALE, F_SOFTCAP };

/* s[r] = sum over d of strip line a0 + r and block line b0 + item; lines from a_n, b_n on are 0. */
DEV void scores(LOCAL f32 *a_room, LOCAL f32 *b_room, strip_lines a, i64 a0, i64 a_n, strip_lines b, i64 b0, i64 b_n, i64 D, f32 s[STRIP]) {
  const i32 t = item(), d = t % SLICE;
  for (i32 r = 0; r < STRIP; r++) s[r] = 0.0f;
  for (i64 d0 = 0; d0 < D; d0 += SLICE) {
    BARRIER();
    for (i32 l = t / SLICE; l < STRIP; l += BLOCK / SLICE)
      a_room[d * STRIP + l] = a0 + l < a_n && d0 + d < D ? line_at(a, a0 + l)[d0 + d] : 0.0f;
    for (i32 l = t / SLICE; l < BLOCK; l += BLOCK / SLICE)
      b_room[d * LINE + l] = b0 + l < b_n && d0 + d < D ? line_at(b, b0 + l)[d0 + d] : 0.0f;
    BARRIER();
    for (i32 i = 0; i < SLICE; i++) {
      const f32 x = b_room[i * LINE + t];
      for (i32 r = 0; r < STRIP; r++) s[r] = f32_fma(a_room[i * STRIP + r], x, s[r]);
    }
  }
}

/* sum[r] += column d of the block's lines, weighted with weights[line][r]. */
DEV void add_lines(LOCAL const f32 *weights, strip_lines b, i64 b0, i64 b_n, i64 d, f32 sum[STRIP]) {
  for (i32 l = 0; l < BLOCK && b0 + l < b_n; l++) {
    const f32 x = line_at(b, b0 + l)[d];
    for (i32 r = 0; r < STRIP; r++) sum[r] = f32_fma(weights[l * STRIP + r], x, sum[r]);
  }
}

/* The first position that position t attends to; own: what the table says, if there is one. */
DEV i64 first_of(i64 window, i64 t, i64 own) {
  const i64 from = window != 0 && t + 1 > window ? t + 1 - window : 0, other = own < t ? own : t;
  return from > other ? from : other;
}
#define FIRST(i, row0, t) first_of(c->n[N_WINDOW], t, HAS(i) ? *ROW(const i32, i, (row0) + (t)) : 0)

DEV f32 capped(f32 score, f32 cap) { return cap != 0.0f ? cap * f32_tanh(score / cap) : score; }

/* q, k, v, first, y, lse */
KERNEL(attention_f32, BLOCK, 6) {
  SHARED f32 a_room[SLICE * STRIP], b_room[SLICE * LINE], weights[BLOCK * STRIP], max[STRIP], total[STRIP], factor[STRIP];
  SHARED i32 first[STRIP];
  const i64 T = c->n[N_T], Nq = c->n[N_NQ], Nkv = c->n[N_NKV], Dqk = c->n[N_DQK], Dv = c->n[N_DV];
  const i64 row0 = (i64)group(2) * T, h = group(1) / c->n[N_PARTS], kv = h / (Nq / Nkv), t0 = (i64)group(0) * STRIP;
  const i64 d = group(1) % c->n[N_PARTS] * BLOCK + item(), past = c->n[N_BIDIRECTIONAL] || t0 + STRIP > T ? T : t0 + STRIP;
  const strip_lines q = lines_of(ARG(u8, 0), STRIDE(0), row0, h * Dqk), k = LINES(1, 0, Nq * Dqk, row0, kv * Dqk);
  const strip_lines v = LINES(2, 0, (Nq + Nkv) * Dqk, row0, kv * Dv);
  const i32 t = item();
  f32 s[STRIP], sum[STRIP];
  if (t < STRIP) {
    first[t] = t0 + t < T ? (i32)FIRST(3, row0, t0 + t) : (i32)T;
    max[t] = -F32_INFINITY;
    total[t] = 0.0f;
  }
  BARRIER();
  i64 from = T;
  for (i32 r = 0; r < STRIP; r++) {
    from = first[r] < from ? first[r] : from;
    sum[r] = 0.0f;
  }
  for (i64 j0 = from / BLOCK * BLOCK; j0 < past; j0 += BLOCK) {
    scores(a_room, b_room, q, t0, T, k, j0, T, Dqk, s);
    for (i32 r = 0; r < STRIP; r++) {
      const i64 j = j0 + t;
      const i32 allowed = j >= first[r] && j < T && (c->n[N_BIDIRECTIONAL] || j <= t0 + r);
      s[r] = allowed ? capped(c->f[F_SCALE] * s[r], c->f[F_SOFTCAP]) : -F32_INFINITY;
      weights[t * STRIP + r] = s[r];
    }
    BARRIER();
    if (t < STRIP) {
      const f32 before = max[t];
      f32 now = before;
      for (i32 l = 0; l < BLOCK; l++) now = f32_max(weights[l * STRIP + t], now);
      factor[t] = now == before ? 1.0f : f32_exp(before - now);
      max[t] = now;
    }
    BARRIER();
    for (i32 r = 0; r < STRIP; r++) weights[t * STRIP + r] = s[r] == -F32_INFINITY ? 0.0f : f32_exp(s[r] - max[r]);
    BARRIER();
    if (t < STRIP) {
      f32 of_block = 0.0f;
      for (i32 l = 0; l < BLOCK; l++) of_block += weights[l * STRIP + t];
      total[t] = f32_fma(total[t], factor[t], of_block);
    }
    for (i32 r = 0; r < STRIP; r++) sum[r] *= factor[r];
    if (d < Dv) add_lines(weights, v, j0, T, d, sum);
  }
  BARRIER();
  for (i32 r = 0; r < STRIP && t0 + r < T && d < Dv; r++) ROW(f32, 4, row0 + t0 + r)[h * Dv + d] = sum[r] / total[r];
  if (HAS(5) && d < STRIP && t0 + d < T) ROW(f32, 5, row0 + t0 + d)[h] = max[t] + f32_log(total[t]);
}

/* dy, q, k, v, first, y, lse. The scratch: dy . y of each row and head. */
KERNEL(attention_delta_f32, BLOCK, 7) {
  const i64 Nq = c->n[N_NQ], Dv = c->n[N_DV], u = (i64)group(0) * BLOCK + item(), row = u / Nq, h = u % Nq;
  f32 sum = 0;
  if (row >= EXT(5, 0)) return;
  for (i64 d = 0; d < Dv; d++) sum = f32_fma(ROW(const f32, 0, row)[h * Dv + d], ROW(const f32, 5, row)[h * Dv + d], sum);
  SCRATCH(f32)[u] = sum;
}

/* ds without the scale of the scores, of a raw product of q and k; *weight: p. */
DEV f32 slope(f32 product, f32 dy_v, f32 lse, f32 delta, f32 scale, f32 cap, f32 *weight) {
  const f32 s = capped(scale * product, cap), of_cap = cap != 0.0f ? 1.0f - s / cap * (s / cap) : 1.0f;
  *weight = f32_exp(s - lse);
  return *weight * (dy_v - delta) * of_cap;
}

/* dy, q, k, v, first, y, lse, dq */
KERNEL(attention_dq_f32, BLOCK, 8) {
  SHARED f32 a_room[SLICE * STRIP], b_room[SLICE * LINE], weights[BLOCK * STRIP], lse[STRIP], delta[STRIP];
  SHARED i32 first[STRIP];
  const i64 T = c->n[N_T], Nq = c->n[N_NQ], Nkv = c->n[N_NKV], Dqk = c->n[N_DQK], Dv = c->n[N_DV];
  const i64 row0 = (i64)group(2) * T, h = group(1) / c->n[N_PARTS], kv = h / (Nq / Nkv), t0 = (i64)group(0) * STRIP;
  const i64 d = group(1) % c->n[N_PARTS] * BLOCK + item(), past = c->n[N_BIDIRECTIONAL] || t0 + STRIP > T ? T : t0 + STRIP;
  const strip_lines dy = lines_of(ARG(u8, 0), STRIDE(0), row0, h * Dv), q = lines_of(ARG(u8, 1), STRIDE(1), row0, h * Dqk);
  const strip_lines k = LINES(2, 1, Nq * Dqk, row0, kv * Dqk), v = LINES(3, 1, (Nq + Nkv) * Dqk, row0, kv * Dv);
  const i32 t = item();
  f32 s[STRIP], dy_v[STRIP], sum[STRIP];
  if (t < STRIP) {
    const i32 there = t0 + t < T;
    first[t] = there ? (i32)FIRST(4, row0, t0 + t) : (i32)T;
    lse[t] = there ? ROW(const f32, 6, row0 + t0 + t)[h] : 0.0f;
    delta[t] = there ? SCRATCH(const f32)[(row0 + t0 + t) * Nq + h] : 0.0f;
  }
  BARRIER();
  i64 from = T;
  for (i32 r = 0; r < STRIP; r++) {
    from = first[r] < from ? first[r] : from;
    sum[r] = 0.0f;
  }
  for (i64 j0 = from / BLOCK * BLOCK; j0 < past; j0 += BLOCK) {
    scores(a_room, b_room, q, t0, T, k, j0, T, Dqk, s);
    scores(a_room, b_room, dy, t0, T, v, j0, T, Dv, dy_v);
    for (i32 r = 0; r < STRIP; r++) {
      const i64 j = j0 + t;
      const i32 allowed = j >= first[r] && j < T && (c->n[N_BIDIRECTIONAL] || j <= t0 + r);
      f32 p;
      weights[t * STRIP + r] = allowed ? slope(s[r], dy_v[r], lse[r], delta[r], c->f[F_SCALE], c->f[F_SOFTCAP], &p) : 0.0f;
    }
    BARRIER();
    if (d < Dqk) add_lines(weights, k, j0, T, d, sum);
  }
  for (i32 r = 0; r < STRIP && t0 + r < T && d < Dqk; r++)
    put(&ROW(f32, 7, row0 + t0 + r)[h * Dqk + d], c->f[F_SCALE] * sum[r], ADDS(7));
}

/* dy, q, k, v, first, y, lse, dq, dk, dv. The first N_DK_PARTS parts of a head are dk's, the others dv's. */
KERNEL(attention_dkv_f32, BLOCK, 10) {
  SHARED f32 a_room[SLICE * STRIP], b_room[SLICE * LINE], weights[BLOCK * STRIP];
  const i64 T = c->n[N_T], Nq = c->n[N_NQ], Nkv = c->n[N_NKV], Dqk = c->n[N_DQK], Dv = c->n[N_DV], window = c->n[N_WINDOW];
  const i64 row0 = (i64)group(2) * T, kv = group(1) / c->n[N_DKV_PARTS], part = group(1) % c->n[N_DKV_PARTS], k0 = (i64)group(0) * STRIP;
  const i32 is_dk = part < c->n[N_DK_PARTS], t = item(), both_ways = c->n[N_BIDIRECTIONAL] != 0;
  const i64 d = (is_dk ? part : part - c->n[N_DK_PARTS]) * BLOCK + t, D = is_dk ? Dqk : Dv, heads = Nq / Nkv;
  const i64 past = window != 0 && !both_ways && k0 + STRIP - 1 + window < T ? k0 + STRIP - 1 + window : T;
  const strip_lines k = LINES(2, 1, Nq * Dqk, row0, kv * Dqk), v = LINES(3, 1, (Nq + Nkv) * Dqk, row0, kv * Dv);
  f32 s[STRIP], dy_v[STRIP], sum[STRIP];
  for (i32 r = 0; r < STRIP; r++) sum[r] = 0.0f;
  for (i64 h = kv * heads; h < (kv + 1) * heads; h++) {
    const strip_lines dy = lines_of(ARG(u8, 0), STRIDE(0), row0, h * Dv), q = lines_of(ARG(u8, 1), STRIDE(1), row0, h * Dqk);
    for (i64 r0 = both_ways ? 0 : k0 / BLOCK * BLOCK; r0 < past; r0 += BLOCK) {
      const i64 row = r0 + t;
      scores(a_room, b_room, k, k0, T, q, r0, T, Dqk, s);
      if (is_dk) scores(a_room, b_room, v, k0, T, dy, r0, T, Dv, dy_v);
      const i64 from = row < T ? FIRST(4, row0, row) : T;
      const f32 lse = row < T ? ROW(const f32, 6, row0 + row)[h] : 0.0f;
      const f32 delta = row < T && is_dk ? SCRATCH(const f32)[(row0 + row) * Nq + h] : 0.0f;
      for (i32 r = 0; r < STRIP; r++) {
        f32 p = 0.0f, ds = 0.0f;
        if (k0 + r >= from && k0 + r < T && (both_ways || k0 + r <= row))
          ds = slope(s[r], is_dk ? dy_v[r] : 0.0f, lse, delta, c->f[F_SCALE], c->f[F_SOFTCAP], &p);
        weights[t * STRIP + r] = is_dk ? ds : p;
      }
      BARRIER();
      if (d < D) add_lines(weights, is_dk ? q : dy, r0, T, d, sum);
    }
  }
  if (d >= D) return;
  strip_lines to = LINES(9, 7, (Nq + Nkv) * Dqk, row0, kv * Dv);
  if (is_dk) to = LINES(8, 7, Nq * Dqk, row0, kv * Dqk);
  const i32 adds = HAS(2) ? (is_dk ? ADDS(8) : ADDS(9)) : ADDS(7);
  for (i32 r = 0; r < STRIP && k0 + r < T; r++) put(&line_at(to, k0 + r)[d], is_dk ? c->f[F_SCALE] * sum[r] : sum[r], adds);
}

#if WR_DEV_HOST
#include "ops/attention/attention_i.h"

wr_launch_fn attention_f32_dev, attention_bwd_f32_dev;

static int64_t parts(int64_t n, int64_t most) { return (n + most - 1) / most; }

/* The numbers that all kernels read; arguments at, at + 1, at + 2 of the view are q, k, v. */
static void numbers(const wr_call *view, int at, wr_launch *out) {
  const wr_attention_params *p = view->params;
  const wr_arg *q = &view->args[at], *k = q + 1, *v = q + 2;
  const int64_t n[] = {p->T, q->ext[1], k->ext[1], q->ext[2], v->ext[2], p->window, p->bidirectional};
  memcpy(out->n, n, sizeof n);
  out->f[F_SCALE] = p->scale;
  out->f[F_SOFTCAP] = p->softcap;
}

void attention_f32_dev(const wr_call *c, wr_launch *out) {
  wr_call view;
  const wr_attention_params *p = c->params;
  numbers(wr_attn_apart(c, &view), ATTN_Q, out);
  out->n[N_PARTS] = parts(out->n[N_DV], BLOCK);
  wr_launch_add(out, &attention_f32, parts(p->T, STRIP), out->n[N_NQ] * out->n[N_PARTS], p->B);
}

void attention_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  wr_call room;
  const wr_call *view = wr_attn_bwd_apart(c, &room);
  const wr_attention_params *p = c->params;
  numbers(view, ATTN_BWD_Q, out);
  wr_launch_add(out, &attention_delta_f32, parts(p->B * p->T * out->n[N_NQ], BLOCK), 1, 1);
  out->n[N_PARTS] = parts(out->n[N_DQK], BLOCK);
  out->n[N_DK_PARTS] = view->args[ATTN_BWD_DK].data ? parts(out->n[N_DQK], BLOCK) : 0;
  out->n[N_DKV_PARTS] = out->n[N_DK_PARTS] + (view->args[ATTN_BWD_DV].data ? parts(out->n[N_DV], BLOCK) : 0);
  const int64_t strips = parts(p->T, STRIP);
  if (view->args[ATTN_BWD_DQ].data) wr_launch_add(out, &attention_dq_f32, strips, out->n[N_NQ] * out->n[N_PARTS], p->B);
  wr_launch_add(out, &attention_dkv_f32, strips, out->n[N_NKV] * out->n[N_DKV_PARTS], p->B);
}
#endif

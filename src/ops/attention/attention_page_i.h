/* A page of 32 positions against a few query heads: the inner loop of both forms of attention. For *_cpu.c files only.
 *
 * Scores have positions as lanes, ascending over d; softmax is carried on from page to page (Milakov and Gimelshein 2018);
 * values have d as lanes, ascending over positions. Each head's sums are its own, so how many heads go together changes no
 * bits. */
#ifndef WR_OPS_ATTENTION_PAGE_I_H
#define WR_OPS_ATTENTION_PAGE_I_H

#include <math.h>

#include "ops/attention/attention.h"
#include "ops/simd_i.h"

/* Query heads that go together: what the registers hold. */
enum { WR_ATTN_GROUP = WR_ISA_LEVEL >= 2 ? 8 : 4 };

WR_INLINE int part(int64_t left) { return left < WR_LANES ? (int)left : WR_LANES; }

/* What is summed up for one query head: acc[Dv] = sum of e^(s - max) v, total = sum of e^(s - max). */
typedef struct sums {
  float *acc, *max, *total;
} sums;

/* Which row and heads a unit of work is. */
typedef struct target {
  const float *q;               /* of the first query head; the others follow */
  int64_t kv_head, first, past; /* key head; positions attended to */
  const int32_t *pages;         /* paged form: of the row's sequence */
  int64_t Dqk, Dv, v_stride;    /* v_stride: elements from one position's values to the next one's */
  float scale, softcap; /* softcap 0: none */
} target;

WR_INLINE v16 load(const void *p, int64_t i, bool half) {
  return half ? v16_load_f16((const uint16_t *)p + i) : v16_load((const float *)p + i);
}
WR_INLINE v16 load_n(const void *p, int64_t i, int n, bool half) {
  return half ? v16_load_f16_n((const uint16_t *)p + i, n) : v16_load_n((const float *)p + i, n);
}

/* Lanes of positions below `first` or from `past` on become -inf. `at` is the position of lane 0. */
WR_INLINE v16 only_allowed(v16 s, int64_t at, int64_t first, int64_t past) {
  const v16 none = v16_set1(-INFINITY);
  if (past - at < WR_LANES) s = v16_select(m16_first(past > at ? (int)(past - at) : 0), s, none);
  if (first > at) s = v16_select(m16_first(first - at < WR_LANES ? (int)(first - at) : WR_LANES), none, s);
  return s;
}

/* Scores that are to stay within +-cap. */
WR_INLINE v16 capped(v16 s, float cap) {
  return cap != 0 ? v16_mul(v16_set1(cap), v16_tanh(v16_mul(s, v16_set1(1 / cap)))) : s;
}

/* Values of one page for NB blocks of d: acc = acc * keep + sum over places of p v. */
WR_INLINE void add_values(const void *v, int64_t v_stride, int64_t Dv, int64_t d, int n_last, int lo, int hi, const float *keep,
                          float (*p)[WR_KV_PAGE], float *acc, const int G, const int NB, const bool half) {
  v16 a[8 * 4];
  for (int g = 0; g < G; g++)
    for (int b = 0; b < NB; b++)
      a[g * NB + b] = v16_mul(v16_load_n(acc + g * Dv + d + b * WR_LANES, b == NB - 1 ? n_last : WR_LANES), v16_set1(keep[g]));
  for (int i = lo; i < hi; i++) {
    v16 x[4];
    for (int b = 0; b < NB; b++) {
      int64_t at = i * v_stride + d + b * WR_LANES;
      x[b] = b == NB - 1 && n_last < WR_LANES ? load_n(v, at, n_last, half) : load(v, at, half);
    }
    for (int g = 0; g < G; g++) {
      v16 weight = v16_set1(p[g][i]);
      for (int b = 0; b < NB; b++) a[g * NB + b] = v16_fma(weight, x[b], a[g * NB + b]);
    }
  }
  for (int g = 0; g < G; g++)
    for (int b = 0; b < NB; b++) v16_store_n(acc + g * Dv + d + b * WR_LANES, a[g * NB + b], b == NB - 1 ? n_last : WR_LANES);
}

/* Products of G queries with the 32 keys of a page, [Dqk][32]. */
WR_INLINE void score_page(const target *t, const void *k, float (*p)[WR_KV_PAGE], const int G, const bool half) {
  v16 s[8][2];
  for (int g = 0; g < G; g++) s[g][0] = s[g][1] = v16_zero();
  for (int64_t d = 0; d < t->Dqk; d++) {
    v16 k0 = load(k, d * WR_KV_PAGE, half), k1 = load(k, d * WR_KV_PAGE + WR_LANES, half);
    for (int g = 0; g < G; g++) {
      v16 q = v16_set1(t->q[g * t->Dqk + d]);
      s[g][0] = v16_fma(q, k0, s[g][0]);
      s[g][1] = v16_fma(q, k1, s[g][1]);
    }
  }
  for (int g = 0; g < G; g++)
    for (int i = 0; i < 2; i++) v16_store(p[g] + i * WR_LANES, s[g][i]);
}

/* Scores become e^(s - max), the maximum and the total are carried on; keep: what sums so far are to be multiplied with. One
 * copy for any number of heads: it is a small part of the work. */
static __attribute__((noinline)) void soften_page(const target *t, int64_t at, sums *out, float (*p)[WR_KV_PAGE], float *keep,
                                                  int n) {
  for (int g = 0; g < n; g++) {
    v16 s[2];
    for (int i = 0; i < 2; i++) {
      s[i] = capped(v16_mul(v16_load(p[g] + i * WR_LANES), v16_set1(t->scale)), t->softcap);
      s[i] = only_allowed(s[i], at + i * WR_LANES, t->first, t->past);
    }
    float max = v16_hmax(v16_max(s[0], s[1]));
    if (out->max[g] > max) max = out->max[g];
    keep[g] = out->max[g] - max;
    out->max[g] = max;
    for (int i = 0; i < 2; i++) v16_store(p[g] + i * WR_LANES, v16_exp(v16_sub(s[i], v16_set1(max))));
  }
  v16_store(keep, v16_exp(v16_load(keep)));
  for (int g = 0; g < n; g++)
    out->total[g] = out->total[g] * keep[g] + v16_sum(v16_add(v16_load(p[g]), v16_load(p[g] + WR_LANES)));
}

/* One page for G query heads: keys [Dqk][32], values [32] rows of Dv; `at` is the position of its first place. */
WR_INLINE void attend_page(const target *t, const void *k, const void *v, int64_t at, sums *out, const int G, const bool half) {
  float p[8][WR_KV_PAGE], keep[WR_LANES] = {0};
  score_page(t, k, p, G, half);
  soften_page(t, at, out, p, keep, G);
  int lo = t->first > at ? (int)(t->first - at) : 0, hi = t->past - at < WR_KV_PAGE ? (int)(t->past - at) : WR_KV_PAGE;
  const int NB = G * 4 <= 3 * WR_ATTN_GROUP / 2 ? 4 : G * 2 <= 3 * WR_ATTN_GROUP ? 2 : 1;
  int64_t d = 0;
  for (; d + NB * WR_LANES <= t->Dv; d += NB * WR_LANES)
    add_values(v, t->v_stride, t->Dv, d, WR_LANES, lo, hi, keep, p, out->acc, G, NB, half);
  for (; d < t->Dv; d += WR_LANES) add_values(v, t->v_stride, t->Dv, d, part(t->Dv - d), lo, hi, keep, p, out->acc, G, 1, half);
}

#endif

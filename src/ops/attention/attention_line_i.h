/* Scores of a row, a line of them, made into weights: what both forms of attention do between their two products. For *_cpu.c files
 * only.
 *
 * The softmax is carried on from line to line (Milakov and Gimelshein 2018). */
#ifndef WR_OPS_ATTENTION_LINE_I_H
#define WR_OPS_ATTENTION_LINE_I_H

#include <math.h>

#include "ops/attention/attention.h"
#include "ops/simd_i.h"

/* Lanes of positions below `first` or from `past` on become -inf. `at` is the position of lane 0. */
WR_INLINE v16 only_allowed(v16 s, int64_t at, int64_t first, int64_t past) {
  const v16 none = v16_set1(-INFINITY);
  if (past - at < WR_LANES) s = v16_select(m16_first(past > at ? (int)(past - at) : 0), s, none);
  if (first > at) s = v16_select(m16_first(first - at < WR_LANES ? (int)(first - at) : WR_LANES), none, s);
  return s;
}

/* Scores that are to stay within +-cap; 0: as they are. */
WR_INLINE v16 capped(v16 s, float cap) {
  return cap != 0 ? v16_mul(v16_set1(cap), v16_tanh(v16_mul(s, v16_set1(1 / cap)))) : s;
}

/* Products of G rows, score[lo] to score[hi - 1] and so on every `step`, whole vectors, become e^(s - max). score[0] is that of position
 * `at`; row g attends to some of them, which are in [first[g], past[g]). Maxima and totals are carried on; keep: what sums so far are to be
 * multiplied with. Rows go side by side, so that none waits for its own maximum. */
WR_INLINE void soften_side_by_side(const int G, const wr_attention_params *p, float *score, int64_t step, int64_t lo, int64_t hi,
                                   int64_t at, const int64_t *first, const int64_t *past, float *max, float *total,
                                   float *keep) {
  enum { MOST = 4 };
  const v16 scale = v16_set1(p->scale);
  v16 most[MOST], sum[MOST];
  float now[MOST];
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) most[g] = v16_set1(max[g]), sum[g] = v16_zero();
  for (int64_t k = lo; k < hi; k += WR_LANES)
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      float *const s = score + g * step + k;
      const v16 x = only_allowed(capped(v16_mul(v16_load(s), scale), p->softcap), at + k, first[g], past[g]);
      v16_store(s, x);
      most[g] = v16_max(most[g], x);
    }
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) now[g] = v16_hmax(most[g]);
  for (int64_t k = lo; k < hi; k += WR_LANES)
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      float *const s = score + g * step + k;
      const v16 x = v16_exp(v16_sub(v16_load(s), v16_set1(now[g])));
      v16_store(s, x);
      sum[g] = v16_add(sum[g], x);
    }
  v16_store_n(keep, v16_exp(v16_sub(v16_load_n(max, G), v16_load_n(now, G))), G);
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) {
    max[g] = now[g];
    total[g] = total[g] * keep[g] + v16_sum(sum[g]);
  }
}

typedef void soften_fn(const wr_attention_params *p, float *score, int64_t step, int64_t lo, int64_t hi, int64_t at,
                       const int64_t *first, const int64_t *past, float *max, float *total, float *keep);
#define SOFTEN(G) \
  static __attribute__((noinline)) void soften_##G(const wr_attention_params *p, float *score, int64_t step, int64_t lo, int64_t hi, \
                                                   int64_t at, const int64_t *first, const int64_t *past, float *max, float *total, \
                                                   float *keep) { \
    soften_side_by_side(G, p, score, step, lo, hi, at, first, past, max, total, keep); \
  }
SOFTEN(1)
SOFTEN(2)
SOFTEN(3)
SOFTEN(4)
#undef SOFTEN
/* [n - 1]: of n rows. */
static soften_fn *const soften[] = {soften_1, soften_2, soften_3, soften_4};
enum { SOFTEN_MOST = WR_ARRAY_LEN(soften) };

#endif

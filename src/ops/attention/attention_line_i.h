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

/* Products of a row, score[lo] to score[hi - 1], whole vectors, become e^(s - max). score[0] is that of position `at`; the row attends to
 * some of them, which are in [first, past). Maximum and total are carried on. Returns what sums so far are to be multiplied with. */
static __attribute__((noinline, unused)) float soften(const wr_attention_params *p, float *score, int64_t lo, int64_t hi,
                                                      int64_t at, int64_t first, int64_t past, float *max, float *total) {
  const v16 scale = v16_set1(p->scale);
  v16 most = v16_set1(*max);
  for (int64_t k = lo; k < hi; k += WR_LANES) {
    const v16 x = only_allowed(capped(v16_mul(v16_load(score + k), scale), p->softcap), at + k, first, past);
    v16_store(score + k, x);
    most = v16_max(most, x);
  }
  const float now = v16_hmax(most), before = *max;
  v16 sum = v16_zero();
  for (int64_t k = lo; k < hi; k += WR_LANES) {
    const v16 x = v16_exp(v16_sub(v16_load(score + k), v16_set1(now)));
    v16_store(score + k, x);
    sum = v16_add(sum, x);
  }
  float keep[WR_LANES];
  v16_store(keep, v16_exp(v16_set1(before - now)));
  *max = now;
  *total = *total * keep[0] + v16_sum(sum);
  return keep[0];
}

#endif

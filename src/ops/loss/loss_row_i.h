/* A row of logits: its target, and the logarithm of its sum of exponentials. For *_cpu.c files only.
 *
 * The sum runs in 64 lanes, element v in lane v mod 64, added as a tree; the logarithm is libm's, of a double. */
#ifndef WR_OPS_LOSS_ROW_I_H
#define WR_OPS_LOSS_ROW_I_H

#include <math.h>

#include "ops/arg_i.h"
#include "ops/simd_i.h"

enum { SUMS = 4 };

/* The target of a row, -1 when it does not count. */
static int64_t target_of(const wr_arg *targets, int64_t row, int64_t V) {
  const int64_t t = wr_arg_i32(targets, row);
  return t >= 0 && t < V ? t : -1;
}

static int64_t count_targets(const wr_arg *targets, int64_t rows, int64_t V) {
  int64_t n = 0;
  for (int64_t r = 0; r < rows; r++) n += target_of(targets, r, V) >= 0;
  return n;
}

/* Elements past the end are -inf: they change neither the maximum nor the sum. */
WR_INLINE v16 load_row(const float *x, int64_t V, int64_t v) {
  const int n = wr_lanes(V - v);
  return v16_select(m16_first(n), v16_load_n(x + v, n), v16_set1(-INFINITY));
}

/* ln sum_v e^{x_v} */
static double log_sum(const float *x, int64_t V) {
  v16 most = v16_set1(-INFINITY), sums[SUMS] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
  for (int64_t v = 0; v < V; v += WR_LANES) most = v16_max(most, load_row(x, V, v));
  const float max = v16_hmax(most);
  const v16 m = v16_set1(max);
  for (int64_t v = 0; v < V; v += SUMS * WR_LANES)
    for (int j = 0; j < SUMS && v + j * WR_LANES < V; j++)
      sums[j] = v16_add(sums[j], v16_exp(v16_sub(load_row(x, V, v + j * WR_LANES), m)));
  return (double)max + log((double)v16_sum(v16_add(v16_add(sums[0], sums[1]), v16_add(sums[2], sums[3]))));
}

#endif

/* The definition of rotary position embedding: see rope.h for the equations. */
#include <math.h>

#include "ops/ref_i.h"
#include "ops/rope/rope.h"
#include "ops/rope/rope_i.h"

WR_ROW_FN(rope_table_ref);
WR_ROW_FN(rope_ref);

static double yarn_mix(const wr_rope_params *p, int64_t i) {
  double low, high;
  if (p->ext_factor == 0) return 0;
  wr_rope_ramp(p, &low, &high);
  double ramp = ((double)i - low) / fmax(high - low, 0.001);
  return (double)p->ext_factor * (1 - fmin(fmax(ramp, 0), 1));
}

WR_ROW_FN(rope_table_ref) {
  const wr_arg *factors = &c->args[ROPE_TABLE_FACTORS];
  const wr_rope_params *p = &((const wr_rope_table_params *)c->params)->rope;
  int64_t half = p->n_dims / 2, begin, end;
  const double m = wr_rope_magnitude(p);
  while (wr_take(w, 0, wr_live_rows(c, ROPE_TABLE_POS), 16, &begin, &end))
    for (int64_t i = 0; i < half; i++) { /* rows inside: what a pair has is the same for all */
      const double frequency = pow((double)p->theta, -2.0 * (double)i / p->n_dims), mix = yarn_mix(p, i);
      for (int64_t r = begin; r < end; r++) {
        double fast = (double)wr_ref_int(c, ROPE_TABLE_POS, r) * frequency;
        if (factors->data) fast /= wr_get(factors, i, 0);
        double slow = (double)p->freq_scale * fast, angle = slow + mix * (fast - slow);
        wr_ref_put(c, ROPE_TABLE_TABLE, r, i, m * cos(angle));
        wr_ref_put(c, ROPE_TABLE_TABLE, r, half + i, m * sin(angle));
      }
    }
}

WR_ROW_FN(rope_ref) {
  const wr_arg *x = &c->args[ROPE_X], *table = &c->args[ROPE_TABLE];
  const wr_rope_turn_params *p = c->params;
  int64_t Dh = x->ext[2], n = table->ext[1], begin, end;
  while (wr_take(w, 0, wr_live_rows(c, ROPE_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t h = 0; h < x->ext[1]; h++) {
        for (int64_t i = 0; i < n / 2; i++) {
          int64_t ia = h * Dh + (p->neox ? i : 2 * i), ib = p->neox ? ia + n / 2 : ia + 1;
          double a = wr_get(x, r, ia), b = wr_get(x, r, ib), cosine = wr_get(table, r, i), sine = wr_get(table, r, n / 2 + i);
          if (p->inverse) sine = -sine;
          wr_ref_put(c, ROPE_Y, r, ia, a * cosine - b * sine);
          wr_ref_put(c, ROPE_Y, r, ib, b * cosine + a * sine);
        }
        for (int64_t d = n; d < Dh; d++) wr_ref_put(c, ROPE_Y, r, h * Dh + d, wr_get(x, r, h * Dh + d));
      }
}

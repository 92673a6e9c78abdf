/* The places of the arguments of this family's ops in wr_call.args. */
#ifndef WR_OPS_ROPE_I_H
#define WR_OPS_ROPE_I_H

#include <math.h>

#include "ops/rope/rope.h"

enum { ROPE_TABLE_POS, ROPE_TABLE_FACTORS, ROPE_TABLE_TABLE };
enum { ROPE_X, ROPE_TABLE, ROPE_Y };

/* YaRN's ramp begins at pair *low and ends at *high; without it neither counts. */
static inline double wr_rope_pair(const wr_rope_params *p, double turns) {
  return p->n_dims * log(p->orig_ctx / (2 * M_PI * turns)) / (2 * log((double)p->theta));
}
static inline void wr_rope_ramp(const wr_rope_params *p, double *low, double *high) {
  *low = *high = 0;
  if (p->ext_factor == 0) return;
  *low = fmax(floor(wr_rope_pair(p, (double)p->beta_fast)), 0);
  *high = fmin(ceil(wr_rope_pair(p, (double)p->beta_slow)), p->n_dims - 1);
}

/* m of the table */
static inline double wr_rope_magnitude(const wr_rope_params *p) {
  return (double)p->attn_factor * (p->ext_factor == 0 ? 1 : 1 + 0.1 * log(fmax(1 / (double)p->freq_scale, 1)));
}

#endif
